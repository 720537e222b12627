"""Clocks that are wrong by days for a while: nothing may be forgotten for that."""

from __future__ import annotations

from dataclasses import replace

from simulation.choosing import Choices
from simulation.plan import Jump, Plan

DAY = 86400.0


def with_days(choices: Choices, plan: Plan) -> Plan:
    """In one plan of twelve the clock is put forward by days, and put right after some seconds or never."""
    if choices.number(0, 11) or plan.is_fair or plan.has_spare or plan.halts or plan.opt_outs:
        return plan
    at, days = choices.number(0, 60) / 10, choices.one_of((8 * DAY, 8 * DAY, 30 * DAY))
    wrong_for = choices.one_of((1.0, 4.0, 75.0, None))
    back = () if wrong_for is None else (Jump(at + wrong_for, -days),)
    return replace(plan, jumps=(Jump(at, days), *back), suspensions=())
