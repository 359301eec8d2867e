"""Figures of the documentation's first page and tutorials, from separate runs.

    python -m benchmarks.doc_pictures --root_dir=runs/doc_pictures

trains the missing runs of the folder, and writes to docs/images/.
"""

import argparse
import pathlib

import numpy as np

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "docs" / "images"
# The first page: label, gin file.
ALGORITHMS = {
    "PPO": "ppo/tf_cartpole.gin",
    "A2C": "a2c/tf_cartpole.gin",
    "DQN": "dqn/tf_cartpole.gin",
    "SAC": "sac/tf_cartpole.gin",
}
SEEDS = range(3)
# docs/tutorials/reading_the_curves.md: label, learning rate.
RATES = {"sound": 5e-4, "too_high": 5e-2}
PANELS = ("episode_return", "entropy", "approx_kl", "clip_fraction", "explained_variance")
COLOURS = ("#3f6fd8", "#d9652b", "#2a9d6f", "#9b59b6")
THEMES = {"light": "#222222", "dark": "#dddddd"}


def train(gin_file, folder, **bindings):
    """Trains a run unless it exists; returns its record."""
    import tfrl
    from tfrl.experiment.report import RunRecord

    if not (folder / "summary.json").exists():
        tfrl.train(gin_file, root_dir=folder, **bindings)
    return RunRecord.read(folder)


def axes_of(figure, ink, count):
    """Returns axes for a light or a dark page."""
    all_axes = figure.subplots(1, count, squeeze=False)[0]
    for axes in all_axes:
        axes.patch.set_alpha(0.0)
        axes.tick_params(colors=ink, labelsize=8)
        axes.grid(alpha=0.25)
        for side, spine in axes.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(ink)
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title):
            text.set_color(ink)
    return all_axes


def smoothed(steps, values, window=10):
    """Returns steps and means over the last rows, fewer at the start."""
    sums = np.cumsum(np.insert(values, 0, 0.0))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return steps, (sums[ends] - sums[starts]) / (ends - starts)


def first_page(root):
    """Draws the return of each algorithm, once for light and once for dark pages."""
    import matplotlib
    from matplotlib import figure as figures

    matplotlib.rcParams["svg.fonttype"] = "none"  # the page's own font
    runs = {
        label: [
            train(file, root / f"{label}_{seed}", seed=seed, **{"train.video": False})
            for seed in SEEDS
        ]
        for label, file in ALGORITHMS.items()
    }
    for theme, ink in THEMES.items():
        figure = figures.Figure(figsize=(7.2, 2.9), layout="tight")
        (axes,) = axes_of(figure, ink, 1)
        for colour, (label, own) in zip(COLOURS, runs.items(), strict=True):
            curves = [smoothed(*run.column("episode_return")) for run in own]
            end = min(steps[-1] for steps, _ in curves)
            start = max(steps[0] for steps, _ in curves)
            at = np.geomspace(max(start, 1_000), end, 60)
            values = np.stack([np.interp(at, *curve) for curve in curves])
            axes.plot(at, values.mean(0), color=colour, label=label)
            axes.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.2, lw=0)
        axes.set_xscale("log")
        axes.set_xlabel("env steps")
        axes.set_ylabel("return of CartPole")
        axes.legend(fontsize=8, labelcolor=ink, frameon=False, loc="lower right")
        figure.savefig(
            IMAGES / f"first_page.{theme}.svg", transparent=True, metadata={"Date": None}
        )


def reading_the_curves(root):
    """Draws five metrics of a good run and of a run with too high a learning rate."""
    from matplotlib import figure as figures

    runs = {
        label: train(
            "ppo/tf_cartpole.gin",
            root / label,
            total_env_steps=100_000,
            eval_interval=10_000,
            **{"LinearSchedule.start": rate},
        )
        for label, rate in RATES.items()
    }
    figure = figures.Figure(figsize=(11, 2.4), layout="tight")
    figure.patch.set_facecolor("white")
    for axes, name in zip(axes_of(figure, "#222222", len(PANELS)), PANELS, strict=True):
        for colour, (label, run) in zip(COLOURS, runs.items(), strict=False):
            axes.plot(*run.column(name), color=colour, label=label, linewidth=1)
        axes.set_title(name, fontsize=9)
        if name in ("approx_kl",):
            axes.set_yscale("log")
    figure.axes[0].legend(fontsize=8, frameon=False)
    path = IMAGES / "reading_the_curves.png"
    figure.savefig(path, dpi=80, metadata={"Software": None})


def main():
    """Trains and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root_dir", type=pathlib.Path, default=pathlib.Path("runs/doc_pictures"))
    root = parser.parse_args().root_dir.absolute()
    IMAGES.mkdir(exist_ok=True)
    first_page(root)
    reading_the_curves(root)


if __name__ == "__main__":
    main()
