"""The pages of docs/api/, made of the public names of the packages.

    python -m tests.api_pages

writes them. On the site mkdocstrings puts signature and docstring in the place of each `:::` line.
"""

import importlib
import inspect
import pkgutil

from tests.docs_helpers import ROOT

FOLDER = ROOT / "docs" / "api"
# Pages: title, and the modules whose public names they have.
PAGES = {
    "tfrl": ("tfrl", ["tfrl"]),
    "envs": ("Environments", ["tfrl.envs", "tfrl.envs.wrappers", "tfrl.envs.workers"]),
    "agents": ("Agents", ["tfrl.agents"]),
    "workflows": ("Workflows", ["tfrl.workflows"]),
    "learners": ("Learners", ["tfrl.learners"]),
    "optimizers": ("Optimizers", ["tfrl.learning.optimizers"]),
    "networks": ("Networks", ["tfrl.networks", "tfrl.distributions"]),
    "ops": ("Operations", ["tfrl.ops"]),
    "replay": ("Replay", ["tfrl.replay"]),
    "rollout": ("Rollouts and evaluation", ["tfrl.rollout", "tfrl.evaluation"]),
    "evolution": ("Evolution", ["tfrl.evolution"]),
    "tasks": ("Tasks of worker pools", ["tfrl.tasks"]),
    "episodes": ("Episodes and metrics", ["tfrl.episodes", "tfrl.metrics"]),
    "distribute": ("Several devices", ["tfrl.distribute"]),
    "experiment": (
        "Runs on disk",
        ["tfrl.experiment.callbacks", "tfrl.experiment.report", "tfrl.experiment.comparison"],
    ),
    "compat": ("TF-Agents", ["tfrl.compat.tf_agents"]),
    "core": (
        "Nests, specs and keys",
        [*("tfrl.struct", "tfrl.types", "tfrl.specs", "tfrl.seeding", "tfrl.errors")],
    ),
}
# Names of the last release, and of other packages.
OLD = {"OwnUpdate", "Agreement"}


def public(module):
    """Returns the public names of a module: those of `__all__`, else what it defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return [name for name in listed if not name.startswith("_") and name not in OLD]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


def home(module, name):
    """Returns where an object is defined, which is where mkdocstrings finds it; None of a value."""
    value = getattr(module, name)
    if inspect.ismodule(value):
        return None
    defined, own = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if own is None or not str(defined).startswith("tfrl"):
        return None
    return f"{defined}.{own}"


def elsewhere():
    """Returns `{where an object is defined: page}` of all pages but that of the top level."""
    found = {}
    for name, (_, modules) in PAGES.items():
        for module_name in modules if name != "tfrl" else ():
            module = importlib.import_module(module_name)
            for own in public(module):
                found.setdefault(home(module, own), name)
    return found


def page(name):
    """Returns the text of a page."""
    title, modules = PAGES[name]
    lines, links = [f"# {title}"], []
    seen = set()
    others = {where: other for where, other in elsewhere().items() if other != name}
    for module_name in modules:
        module = importlib.import_module(module_name)
        first = inspect.getdoc(module).partition("\n\n")[0].replace("\n", " ")
        lines += ["", f"## `{module_name}`", "", first]
        for own in sorted(public(module), key=str.lower):
            where = home(module, own)
            if where is None or where in seen:
                continue
            seen.add(where)
            if where in others:
                links.append(f"| `{own}` | [{PAGES[others[where]][0]}]({others[where]}.md) |")
                continue
            lines += ["", f"::: {where}", "    options:", "      heading_level: 3"]
    if links:
        lines[1:1] = ["", "| name | on the page |", "|---|---|", *links]
    return "\n".join(lines) + "\n"


def index():
    """Returns the text of the page that lists the others."""
    lines = [
        "# API reference",
        "",
        "The public names of each package, with their docstrings.",
        "",
        "| page | packages |",
        "|---|---|",
    ]
    for name, (title, modules) in PAGES.items():
        packages = ", ".join(f"`{module}`" for module in modules)
        lines.append(f"| [{title}]({name}.md) | {packages} |")
    lines += ["", "Pages are written by `python -m tests.api_pages`."]
    return "\n".join(lines) + "\n"


def pages():
    """Returns `{file name: text}` of all pages."""
    return {"README.md": index(), **{f"{name}.md": page(name) for name in PAGES}}


def public_modules():
    """Returns the packages right below tfrl."""
    import tfrl

    return [f"tfrl.{m.name}" for m in pkgutil.iter_modules(tfrl.__path__) if m.ispkg]


def main():
    """Writes all pages."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
