"""The command line: ``lifelong VERB ...``. A user's mistake is one line on stderr and exit code 2."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

from lifelong.experiments.bench import BENCHES
from lifelong.experiments.errors import RunFailed, UserError, did_you_mean

# verb: (module, function, what it does)
_VERBS = {
    "train": ("train", "train", "train an agent: lifelong train [experiment=NAME] [key=value ...]"),
    "resume": ("train", "resume", "go on with a run: lifelong resume RUN [frames=N]"),
    "evaluate": ("evaluate", "evaluate", "run a trained agent: lifelong evaluate RUN [life_steps=N] [lives=B]"),
    "record": ("record", "record", "a life as a film: lifelong record RUN [steps=300] [out=life.gif]"),
    "compare": ("compare", "compare", "compare memory cores over seeds: lifelong compare experiment=NAME [memory=a,b]"),
    "report": ("report", "report", "tables and figures of the runs below a folder: lifelong report FOLDER"),
    "audit": ("audit", "audit", "does a task ask for memory? lifelong audit env=NAME"),
    "probe": ("probe", "probe", "what a memory can do, without RL: lifelong probe memory=NAME[,NAME...]"),
    "bench": ("bench", "bench", "measure this machine: lifelong bench [kernels|ppo]"),
    "list": ("listing", "list_names", "what there is: lifelong list [env|memory|algorithm|experiment|comparison]"),
}


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the ``lifelong`` command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        print("lifelong VERB ...\n" + "\n".join(f"  {verb:<9} {text}" for verb, (_, _, text) in _VERBS.items()))
        return 0 if words else 2
    verb, rest = words[0], words[1:]
    try:
        if verb not in _VERBS:
            raise UserError(f"{verb}: unknown verb; allowed: {', '.join(_VERBS)}{did_you_mean(verb, _VERBS)}")
        module, function, _ = _VERBS[verb]
        if "-h" in rest or "--help" in rest:
            print(_help(verb, rest))
            return 0
        # Imported here so that a typo in the verb is answered at once and not after torch has loaded.
        command = getattr(importlib.import_module(f"lifelong.experiments.{module}"), function)
        return int(command(rest))
    except UserError as error:
        if os.environ.get("LIFELONG_TRACEBACK"):  # for those who write environments and cores
            raise
        print(f"lifelong: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"lifelong: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lifelong: interrupted", file=sys.stderr)
        return 130


def _help(verb: str, words: list[str]) -> str:
    """The verb's line and what the docstring of its module says; of ``bench``, that of the benchmark named."""
    module, _, text = _VERBS[verb]
    part = next((word for word in words if word in BENCHES), None) if verb == "bench" else None
    # Read and not imported, so that help comes at once and not after torch has loaded.
    path = Path(__file__).with_name(f"bench_{part}.py" if part else f"{module}.py")
    said = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").replace("``", "")
    return said if part else "\n".join([text, *said.splitlines()[1:]])


if __name__ == "__main__":
    sys.exit(main())
