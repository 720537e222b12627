"""A worker with messages that are held in doubt, and orders about them."""

from __future__ import annotations

import signal
from subprocess import Popen

from deliveryd.sandbox.faults import ApplyThenHangUp
from support.messages import message
from support.patience import PATIENCE
from support.terminal import Answered, command
from support.world import World

ANN = {"id": 1, "name": "Ann", "phone": "+447700900101"}


def order(world: World, group: str, verb: str, *arguments: object) -> Answered:
    return command(group, verb, "--config", world.config, *arguments)


def hold(world: World, *ids: int) -> None:
    """Have messages in doubt: the gateway took each, and hung up instead of answering."""
    for id_ in ids:
        world.state.fail("provider.sms", ApplyThenHangUp())
        world.state.enqueue(message(id_))
        worker = world.start("--until-idle")
        assert worker.wait(PATIENCE) == 1, world.log()


def running(world: World) -> Popen[bytes]:
    """A worker that takes work, and orders."""
    asked = world.state.requests["queue"]
    worker = world.start(log="info")
    world.state.wait_for(lambda state: state.requests["queue"] > asked, PATIENCE)
    return worker


def end(worker: Popen[bytes]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0


def audited(world: World) -> Answered:
    answered = command("audit", "--config", world.config)
    assert answered.status == 0, answered.out
    return answered
