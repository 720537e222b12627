"""`python -m hostile [--json FILE] [WORD ...]`: what each hostile input costs a worker, and what it says."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from hostile.cases import all_cases
from hostile.stage import Figure, measure, open_stage
from support.output import say

HEAD = "| input | peak MB over calm | seconds | CPU s | what was said |\n|---|---:|---:|---:|---|"


def main() -> int:
    """Print the table, case by case."""
    parser = argparse.ArgumentParser(prog="python -m hostile", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only cases with one of these in their names"
    )
    options = parser.parse_args()
    figures = []
    say(HEAD)
    with tempfile.TemporaryDirectory() as folder, open_stage(Path(folder)) as stage:
        for case in all_cases():
            if not options.words or any(word in case.name for word in options.words):
                figures.append(measure(stage, case))
                say(row(figures[-1]))
        say(f"\n{stage.calm:.0f} MB when calm; ended with status {stage.worker.stop()}")
    if options.json is not None:
        options.json.write_text(
            json.dumps([figure._asdict() for figure in figures], indent=1), encoding="utf-8"
        )
    return 0


def row(figure: Figure) -> str:
    """A figure as a row of the table."""
    numbers = f"{figure.megabytes:.1f} | {figure.seconds:.2f} | {figure.processor:.2f}"
    return f"| {figure.name} | {numbers} | {figure.said[:110].replace('|', '/')} |"


if __name__ == "__main__":
    sys.exit(main())
