"""Train the shapes checkpoint and write it: ``python -m training``."""

import argparse
import math
from pathlib import Path

import torch

from training.export import export
from training.train import STAGES, new_run, restore, train


def main() -> int:
    """Command line; exit code 0 when a checkpoint was written."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("checkpoints/shapes"), help="folder of the checkpoint")
    parser.add_argument("--state", type=Path, default=Path("artifacts/training/state.pt"), help="where training stands")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of every batch")
    parser.add_argument("--resume", action="store_true", help="go on from --state")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so many minutes of training")
    parser.add_argument("--share", type=float, default=1.0, help="part of every stage's steps, for a trial run")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch")
    parser.add_argument("--export-only", action="store_true", help="write the checkpoint of --state and train no more")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    stages = [stage.shortened(options.share) for stage in STAGES]
    run = restore(options.state) if options.resume or options.export_only else new_run(seed=options.seed)
    done = options.export_only or train(run, stages, options.seed, options.state, minutes=options.minutes)
    digest = export(run.model.state_dict(), options.output)
    print(f"{options.output} {digest[:12]} {'' if done else '(stopped early; go on with --resume)'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
