"""Metadata, dependencies and the build hooks: gin files, binaries and the version of the tag."""

import pathlib
import re
import shutil
import subprocess

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = pathlib.Path(__file__).resolve().parent
REPOSITORY = "https://github.com/tfrl/tfrl"
VERSION_FILE = pathlib.Path("tfrl", "_version.py")

# One library, two stacks:
#  * the core runs on TensorFlow 2.15 and on the current one. pip takes the newest that fits.
#    TensorFlow's private parts are used (tfrl/tf_private.py), so that it is bounded above;
#    `.ci/newest` tries a newer one. 2.16 and 2.17 are left out: TensorFlow Probability 0.25 is for
#    2.18 and later. tf-keras, Keras 2, is released with each TensorFlow, and holds pip to its own.
#  * the extras `reverb` and `tf-agents` hold TensorFlow at 2.15. dm-reverb is bound to it by its
#    C++ ABI, is Linux-only and has no wheels above Python 3.11; tf-agents 0.19 is the last release.
# tf-agents requires typing-extensions==4.5.0, pygame==2.1.3 and gym<=0.23.0, so every tool and
# extra below accepts a version that goes with typing-extensions 4.5.
# Do not depend on gymnasium[classic-control]: it brings pygame-ce, which installs over
# tf-agents' pygame in the same folder. pygame renders the same tasks.
INSTALL_REQUIRES = [
    "absl-py>=2.0",
    "cloudpickle>=1.2",
    "gin-config~=0.5.0",
    "gymnasium>=1.1,<1.5",
    "numpy>=1.24,<3",
    "pygame>=2.1.3,<3",
    "rich>=13",
    # TensorFlow Probability imports distutils, which is setuptools' own from Python 3.12 on.
    "setuptools>=64",
    # Event files are written and read by it; TensorFlow itself depends on it no more.
    "tensorboard>=2.15,<2.22",
    # The runtime of Cloud TPU VMs has 2.15.0 of its own.
    "tensorflow>=2.15,!=2.16.*,!=2.17.*,<2.22",
    "tensorflow-probability>=0.23,!=0.24.*,<0.26",
    "tf-keras>=2.15,<2.22",
]

# What goes with TensorFlow 2.15.
_BELOW = "python_version < '3.12'"
_FROM = "python_version >= '3.12'"
STACK_2_15 = [
    f"{line}; {_BELOW}"
    for line in (
        "tensorflow~=2.15.0",
        "tensorflow-probability~=0.23.0",
        "numpy<2",
        # pygame 2.1.3 and tensorboard 2.15 import pkg_resources: from 80.9 on it warns at every
        # start, from 81 on it is gone.
        "setuptools<80.9",
    )
]

EXTRAS = {
    # Replay in a server of its own, and what is built on it: bin/reverb_server.py, bin/collect.py.
    "reverb": [*STACK_2_15, f"dm-reverb~=0.14.0; sys_platform == 'linux' and {_BELOW}"],
    # tfrl.compat.tf_agents and the environments of TF-Agents.
    # Spelt with a hyphen: pip before 23.3 takes no underscore.
    "tf-agents": [*STACK_2_15, f"tf-agents~=0.19.0; {_BELOW}"],
    "mujoco": ["mujoco>=3.1.3,<4", "imageio>=2.14.1"],
    "atari": ["ale-py>=0.10,<0.13", "opencv-python-headless>=4.8,<5"],
    # envpool has wheels from 3.11 on. optree from 0.11 on needs typing-extensions 4.6.
    "envpool": ["envpool~=1.2.5; python_version >= '3.11'", "optree>=0.10"],
    "video": ["imageio-ffmpeg>=0.5", "pillow>=10"],
    # For sample_clip(writer="matplotlib") and "opencv".
    "video-writers": ["matplotlib>=3.7,<4", "opencv-python-headless>=4.8,<5"],
    # For plots of fronts and archives.
    "plots": ["matplotlib>=3.7,<4"],
    # For reports and comparisons of runs.
    # rliable's arch does not import with pandas 3.
    "report": ["matplotlib>=3.7,<4", "rliable>=1.2,<2", "pandas<3"],
    # Searches of hyperparameters: tfrl-tune.
    "tune": ["matplotlib>=3.7,<4", "optuna>=4.1,<5"],
    # tfrl-serve: an ASGI server with the parts that make it fast.
    "serve": [
        "httptools>=0.6",
        "prometheus-client>=0.20",
        "starlette>=0.37,<1",
        "uvicorn>=0.30",
        "uvloop>=0.19",
    ],
    # gRPC of tfrl-serve, by the protocol buffers of TensorFlow Serving.
    "grpc": ["tensorflow-serving-api>=2.15,<3"],
    # Later wandb needs a typing-extensions above the pin.
    "wandb": ["wandb~=0.19.0"],
    # tf2onnx brings onnx, held at 1.17 by protobuf and typing-extensions.
    "export": ["tf2onnx~=1.16", "onnxruntime>=1.17,<2"],
    # Bare ray: ray[default] and Ray Train need a newer typing-extensions. launch.py --engine=ray.
    "ray": ["ray>=2.50,<3"],
    # Not mpe2 itself: it brings pygame-ce, which installs over tf-agents' pygame. Its environments
    # run with that pygame too: `pip install --no-deps mpe2` adds them; they need scipy.
    "multiagent": ["pettingzoo>=1.24,<1.26", "scipy>=1.11"],
    # JAX environments. On Python 3.10 and 3.11 with TensorFlow 2.15: jaxlib 0.4.23 is the last that
    # shares ml-dtypes with it, and what is built on it is held to what runs on it; mujoco-mjx needs
    # its own mujoco, and jax 0.4.23 a scipy before 1.13. From 3.12 on with the current one: jax 0.9
    # is the last whose StableHLO TensorFlow 2.21 (1.13.7) reads; gymnax 1.0 needs a Gymnasium
    # before 1.4.
    "jax": [
        *STACK_2_15,
        *(
            f"{line}; {_BELOW}"
            for line in (
                "jax==0.4.23",
                "jaxlib==0.4.23",
                "brax==0.10.3",
                "mujoco==3.1.3",
                "mujoco-mjx==3.1.3",
                "scipy==1.11.4",
                "gymnax==0.0.9",
                "jumanji==1.1.0",
            )
        ),
        *(
            f"{line}; {_FROM}"
            for line in (
                "tensorflow~=2.21.0",
                "jax~=0.9.2",
                "jaxlib~=0.9.2",
                "brax~=0.14.2",
                "gymnax~=1.0.1",
                "jumanji~=1.1.2",
            )
        ),
    ],
    # What tests of searches are held against beside those of dev; too large for every checkout.
    "evolution-references": [
        "pymoo>=0.6.1,<0.7; python_version >= '3.11'",
        "ribs>=0.8,<0.9; python_version >= '3.11'",
    ],
    # The CUDA libraries of the stack that it is installed with; the driver must be there. 2.15.0
    # asks for a TensorRT that PyPI does not have.
    "cuda": ["tensorflow[and-cuda]>=2.15.1; sys_platform == 'linux'"],
    # The documentation site. From 12 on pymdown-extensions breaks the newest mkdocstrings that runs
    # on Python 3.10.
    "docs": [
        "mkdocs-material>=9.5,<10",
        "mkdocstrings[python]>=0.26,<2",
        "pymdown-extensions<12",
    ],
    "dev": [
        "bandit>=1.7.10",
        "build>=1.0",
        # Searches that tests hold ours against; both need NumPy only.
        "cma>=3.3,<5",
        "cmaes>=0.11",
        "hypothesis>=6.100",
        "import-linter>=2.0",
        "kubernetes-validate>=1.31",
        # Later mypy needs typing-extensions 4.6.
        "mypy==1.10.1",
        "pre-commit>=3.5",
        "pytest>=8",
        "pytest-xdist>=3.5",
        "ruff>=0.6",
        "scipy>=1.11",
        "wheel>=0.40",
    ],
}
# Some gigabytes that need a GPU, and tools of development.
NOT_IN_ALL = ("cuda", "dev", "docs", "evolution-references")
EXTRAS["all"] = sorted(
    {line for name, lines in EXTRAS.items() if name not in NOT_IN_ALL for line in lines}
)

# Folders of the checkout that the wheel carries inside the package.
SHIPPED = {"gin_configs": "*.gin", "bin": "*.py"}


class BuildWithShippedFiles(build_py):
    """Copies `gin_configs/` and `bin/` to `tfrl/_gin_configs` and `tfrl/_bin` of the wheel."""

    def _shipped(self):
        """Yields (source, target) for every shipped file."""
        for folder, pattern in SHIPPED.items():
            for source in sorted((ROOT / folder).rglob(pattern)):
                inside = source.relative_to(ROOT / folder)
                yield source, pathlib.Path(self.build_lib, "tfrl", f"_{folder}", inside)

    def run(self):
        """Builds the package, then copies; an editable install reads the checkout itself."""
        super().run()
        if getattr(self, "editable_mode", False):
            return
        for source, target in self._shipped():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        write_version(pathlib.Path(self.build_lib, VERSION_FILE))

    def get_outputs(self, include_bytecode=1):
        """Returns what the build writes, the copies included."""
        outputs = super().get_outputs(include_bytecode)
        if not getattr(self, "editable_mode", False):
            outputs += [str(target) for _, target in self._shipped()]
        return outputs


class SourceWithVersion(sdist):
    """Writes the version into the source distribution, which has no tags."""

    def make_release_tree(self, base_dir, files):
        """Makes the folder that becomes the archive."""
        super().make_release_tree(base_dir, files)
        write_version(pathlib.Path(base_dir, VERSION_FILE))


def git(*arguments):
    """Returns what a git command prints; nothing where there is no git or no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_version():
    """Returns the version: of the newest git tag `v<version>`, else the one in `_version.py`.

    Commits after a tag make a development version of the next patch release.
    """
    text = (ROOT / VERSION_FILE).read_text(encoding="utf-8")
    written = re.search(r'^__version__ = "([^"]+)"', text, re.MULTILINE).group(1)
    # A source distribution may be unpacked inside of another repository.
    if git("rev-parse", "--show-toplevel") != str(ROOT):
        return written
    described = git("describe", "--tags", "--long", "--match", "v[0-9]*")
    found = re.fullmatch(r"v(\d+\.\d+\.)(\d+)-(\d+)-g(\w+)", described)
    if found is None:
        return written
    minor, patch, commits, commit = found.groups()
    if commits == "0":
        return f"{minor}{patch}"
    return f"{minor}{int(patch) + 1}.dev{commits}+g{commit}"


def write_version(path):
    """Writes the version into a copy of `_version.py`, which may be a link to the source."""
    text = (ROOT / VERSION_FILE).read_text(encoding="utf-8")
    path.unlink(missing_ok=True)
    line = f'__version__ = "{read_version()}"'
    path.write_text(re.sub(r"^__version__ = .*$", line, text, flags=re.MULTILINE), encoding="utf-8")


def read_readme():
    """Returns the README as the long description."""
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.exists() else ""


setup(
    name="tfrl",
    version=read_version(),
    description="Reinforcement learning at TensorFlow speed.",
    long_description=read_readme(),
    long_description_content_type="text/markdown",
    author="The tfrl authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    url=REPOSITORY,
    project_urls={
        "Documentation": f"{REPOSITORY}/blob/main/docs/index.md",
        "Source": REPOSITORY,
        "Issues": f"{REPOSITORY}/issues",
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
    },
    keywords="reinforcement-learning tensorflow ppo sac dqn evolution-strategies gymnasium",
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Libraries :: Python Modules",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["tfrl", "tfrl.*"]),
    package_data={"tfrl": ["py.typed"]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "tfrl-train = tfrl.launch.train:run",
            "tfrl-collect = tfrl.launch.collect:run",
            "tfrl-evaluate = tfrl.launch.evaluate:run",
            "tfrl-export = tfrl.launch.export:run",
            "tfrl-launch = tfrl.launch.launch:run",
            "tfrl-learn = tfrl.launch.learn:run",
            "tfrl-report = tfrl.launch.report:run",
            "tfrl-serve = tfrl.launch.serve:run",
            "tfrl-sweep = tfrl.launch.sweep:run",
            "tfrl-tune = tfrl.launch.tune:run",
            "tfrl-reverb-server = tfrl.launch.reverb_server:run",
        ]
    },
    cmdclass={"build_py": BuildWithShippedFiles, "sdist": SourceWithVersion},
    zip_safe=False,
)
