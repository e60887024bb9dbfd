"""The training loop: a warm-up of the picture part by dense targets, then the whole model on conversations."""

import json
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import Molmo2ForConditionalGeneration

from molmo2_iree.build.embedded_config import Variant
from training.batches import Batch, Pictures, make_last, make_talks, make_views
from training.feed import feed
from training.model import Heads, answer_loss, features_of, image_tokens, new_model, patch_losses
from training.shape import VARIANT


@dataclass(frozen=True)
class Stage:
    """So many steps with so many rows each; the rate rises over ``rise`` steps, then falls as a cosine to ``last``.

    ``dense`` weighs the losses of the image tokens, ``patches`` those of the patches; ``views`` has no other.
    """

    name: Literal["views", "talks", "last"]
    steps: int
    rows: int
    rate: float
    last: float
    rise: int
    dense: float
    patches: float

    def shortened(self, share: float) -> "Stage":
        """This stage with part of its steps."""
        return replace(self, steps=max(round(self.steps * share), 1), rise=round(self.rise * share))


STAGES = (
    Stage("views", steps=1200, rows=64, rate=1.2e-3, last=1.2e-3, rise=60, dense=1.0, patches=1.0),
    Stage("talks", steps=2200, rows=16, rate=1e-3, last=1e-3, rise=150, dense=0.3, patches=0.3),
    Stage("last", steps=1500, rows=16, rate=1e-3, last=2e-5, rise=20, dense=0.2, patches=0.1),
)


MAKERS: dict[str, Any] = {"views": make_views, "talks": make_talks, "last": make_last}

DECAY = 0.05
CLIP = 1.0
SAVE_EVERY = 100


@dataclass
class Run:
    """A training in progress: the next step is ``step`` of stage ``stage``."""

    model: Molmo2ForConditionalGeneration
    heads: Heads
    optimizer: torch.optim.AdamW
    stage: int = 0
    step: int = 0
    seconds: float = 0.0


def new_run(variant: Variant = VARIANT, seed: int = 0) -> Run:
    """Fresh weights and optimiser."""
    model = new_model(variant, seed)
    heads = Heads(variant.text_width, variant.vit_width * len(variant.vit_layers))
    named = [*model.named_parameters(), *heads.named_parameters()]
    groups = [
        {"params": [value for _, value in named if value.dim() > 1], "weight_decay": DECAY},
        {"params": [value for _, value in named if value.dim() <= 1], "weight_decay": 0.0},
    ]
    return Run(model, heads, torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.97)))


def save(run: Run, path: Path) -> None:
    """Write everything that is needed to go on, by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(
        {
            "model": run.model.state_dict(),
            "heads": run.heads.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "at": [run.stage, run.step, run.seconds],
        },
        temporary,
    )
    temporary.replace(path)


def restore(path: Path, variant: Variant = VARIANT) -> Run:
    """The run that :func:`save` wrote."""
    state = torch.load(path, weights_only=True)
    run = new_run(variant)
    run.model.load_state_dict(state["model"])
    run.heads.load_state_dict(state["heads"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.stage, run.step, run.seconds = state["at"]
    return run


def rate_at(stage: Stage, step: int) -> float:
    """Learning rate of a step."""
    if step < stage.rise:
        return stage.rate * (step + 1) / stage.rise
    along = (step - stage.rise) / max(stage.steps - stage.rise, 1)
    return stage.last + (stage.rate - stage.last) * (1 + math.cos(math.pi * along)) / 2


def one_step(run: Run, stage: Stage, batch: Batch | Pictures) -> dict[str, float]:
    """Losses of a batch, and one move of the optimiser."""
    losses: dict[str, torch.Tensor] = {}
    with features_of(run.model) as features:
        if isinstance(batch, Pictures):
            tokens, pictures = image_tokens(run.model, batch), batch
        else:
            losses["answers"], tokens = answer_loss(run.model, batch)
            pictures = batch.pictures
    if tokens is not None and pictures is not None:
        losses |= {name: stage.dense * loss for name, loss in run.heads(tokens, pictures.targets).items()}
        if stage.patches:
            found = patch_losses(run.heads, features[0], pictures.targets)
            losses |= {name: stage.patches * loss for name, loss in found.items()}
    for group in run.optimizer.param_groups:
        group["lr"] = rate_at(stage, run.step)
    run.optimizer.zero_grad(set_to_none=True)
    torch.stack(list(losses.values())).sum().backward()
    parameters = [value for group in run.optimizer.param_groups for value in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
    run.optimizer.step()
    return {name: loss.item() for name, loss in losses.items()} | {"norm": norm.item()}


def train(
    run: Run, stages: Iterable[Stage], seed: int, state: Path, variant: Variant = VARIANT, minutes: float = math.inf
) -> bool:
    """Go on from where ``run`` stands; False when stopped by ``minutes``. Losses go to ``state`` with ``.jsonl``."""
    began, before, stages = time.monotonic(), run.seconds, list(stages)
    while run.stage < len(stages):
        stage, steps = stages[run.stage], range(run.step, stages[run.stage].steps)
        make: Any = MAKERS[stage.name]
        with feed(make, variant, (seed, run.stage), steps, stage.rows) as batches, _bar() as bar:
            task = bar.add_task(stage.name, total=stage.steps, completed=run.step, loss="")
            means: dict[str, float] = {}
            for batch in batches:
                losses = one_step(run, stage, batch)
                means |= {key: means.get(key, value) * 0.97 + value * 0.03 for key, value in losses.items()}
                run.step += 1
                run.seconds = before + time.monotonic() - began
                shown = " ".join(f"{key} {value:.3f}" for key, value in means.items())
                bar.update(task, completed=run.step, loss=shown)
                if run.step % SAVE_EVERY == 0 or run.step == stage.steps:
                    save(run, state)
                    _log(state, {"stage": stage.name, "step": run.step, "seconds": round(run.seconds)} | means)
                if run.seconds > 60 * minutes:
                    save(run, state)
                    return False
        run.stage, run.step = run.stage + 1, 0
        save(run, state)
    return True


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[loss]}"),
    )


def _log(state: Path, line: dict[str, Any]) -> None:
    rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in line.items()}
    with state.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(rounded) + "\n")
