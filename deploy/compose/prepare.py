"""Make the passwords that aren't there yet: for the workers and the database the same one, and Grafana's."""

import os
import secrets
import sys
from pathlib import Path

WORKER, DATABASE, GRAFANA = 10001, 999, 472  # the users in the images


def main(workers: Path, database: Path, grafana: Path) -> None:
    password = workers / "database-password"
    if not password.exists():
        word = secrets.token_hex(24)
        place(database / password.name, word, DATABASE)
        place(password, word, WORKER)
    if not (grafana / "admin-password").exists():
        place(grafana / "admin-password", secrets.token_hex(24), GRAFANA)


def place(file: Path, word: str, user: int) -> None:
    """Write a file that only this user can read."""
    new = file.with_suffix(".new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as opened:
        opened.write(word)
    os.chown(new, user, user)
    new.rename(file)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
