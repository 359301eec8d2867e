import enum
import pathlib
from typing import Literal

import gin
import pytest

from tfrl.errors import UserError
from tfrl.launch import (
    flags,  # noqa: F401  (defines --seed)
    gin_files,
    gin_registry,
)


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


@gin.configurable(module="tests.gin_files", denylist=["hidden"])
def trainer(
    total_steps: int = 10,
    rate: float = 0.1,
    sizes: tuple[int, ...] = (64, 64),
    mode: Literal["on", "off"] = "on",
    kind: Mode = Mode.FAST,
    name: str | None = None,
    flag: bool = False,
    network=None,
    hidden: int = 0,
    table: "dict[str, float] | None" = None,
    implicit: int = None,  # noqa: RUF013
    unknown: "NotImported" = None,  # noqa: F821
):
    return total_steps, rate, sizes, mode, kind, name, flag, network, table


@gin.configurable(module="tests.gin_files")
def build_world(world_id: str = "a:b", num_worlds: int = 1):
    return world_id, num_worlds


@gin.configurable(module="tests.gin_files")
class Net:
    def __init__(self, width: int = 8):
        self.width = width


@gin.configurable(module="one.place")
def twin(x=1):
    return x


@gin.configurable("twin", module="other.place")
def other_twin(x=1):
    return x


@gin.configurable(module="classes")
class Base:
    def __init__(self, a=1, b=2):
        self.a, self.b = a, b


@gin.configurable(module="classes")
class Derived(Base):
    def __init__(self, a=1, b=2, c=3):
        super().__init__(a, b)
        self.c = c


@gin.configurable(module="classes")
class Further(Derived):
    pass


@gin.configurable(module="classes")
class Holder:
    def __init__(self, part=None, lr=1.0, discount=0.9):
        self.part = part


gin_files.declare_scopes("probe")


@pytest.fixture(name="package", autouse=True)
def fixture_package(tmp_path, monkeypatch):
    """A package folder and an unrelated working directory."""
    package = tmp_path / "package_gin"
    (package / "ppo").mkdir(parents=True)
    (package / "ppo" / "base.gin").write_text("trainer.rate = 0.5\ntrainer.total_steps = 5\n")
    (package / "ppo" / "task.gin").write_text(
        "include 'ppo/base.gin'\ntrainer.total_steps = 7\nbuild_world.world_id = 'x:y'\n"
    )
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(gin_files, "package_gin_dir", lambda: package)
    yield package
    gin_registry.search_path()[:] = [""]


def _error(files=(), bindings=()):
    gin.bind_parameter("trainer.rate", 99.0)
    with pytest.raises(UserError) as error:
        gin_files.parse(files, bindings)
    assert gin_registry.bound() == {}, "a failed parse leaves nothing applied"
    assert "\n" not in str(error.value)
    return str(error.value)


def test_real_package_dir_is_the_checkouts(monkeypatch):
    monkeypatch.undo()
    root = pathlib.Path(__file__).resolve().parents[2]
    assert gin_files.package_gin_dir() == root / "gin_configs"


def test_file_of_the_package_with_relative_include():
    gin_files.parse(["ppo/task.gin"])
    assert trainer()[:2] == (7, 0.5)
    assert build_world() == ("x:y", 1)


def test_working_directory_comes_first():
    pathlib.Path("ppo").mkdir()
    pathlib.Path("ppo/base.gin").write_text("trainer.rate = 0.25\n")
    gin_files.parse(["ppo/task.gin"])
    assert trainer()[1] == 0.25


def test_absolute_path(tmp_path):
    path = tmp_path / "my.gin"
    path.write_text("include 'ppo/base.gin'\n")
    gin_files.parse([str(path)])
    assert trainer()[1] == 0.5


def test_bindings_win_over_files_and_later_files_over_earlier():
    pathlib.Path("mine.gin").write_text("trainer.rate = 2.0\n")
    gin_files.parse(["ppo/task.gin", "mine.gin"], ["trainer.total_steps=9"])
    assert trainer()[:2] == (9, 2.0)


def test_parse_replaces_what_was_there():
    gin_files.parse([], ["trainer.rate=3.0"])
    gin_files.parse([], ["trainer.total_steps=4"])
    assert trainer()[:2] == (4, 0.1)


def test_modules_are_imported_first(tmp_path, monkeypatch):
    (tmp_path / "lazy_gin_part.py").write_text(
        "import gin\n@gin.configurable\ndef lazy_part(a: int = 0):\n    return a\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    gin_files.parse([], ["lazy_part.a=3"], modules=["lazy_gin_part"])
    assert gin.get_configurable("lazy_part")() == 3


def test_imports_in_files(tmp_path, monkeypatch):
    (tmp_path / "user_gin_part.py").write_text(
        "import gin\n@gin.configurable\ndef user_part(a: int = 0):\n    return a\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    pathlib.Path("mine.gin").write_text("import user_gin_part\nuser_part.a = 5\n")
    gin_files.parse(["mine.gin"])
    assert gin.get_configurable("user_part")() == 5


def test_macros_references_blocks_and_scopes():
    pathlib.Path("mine.gin").write_text(
        "width = 16\n"
        "trainer:\n  network = @small/Net()\n  sizes = (%width, 32)\n"
        "small/Net.width = %width\n"
        "probe/build_world.num_worlds = 3\n"
    )
    gin_files.parse(["mine.gin"])
    result = trainer()
    assert result[7].width == 16
    assert result[2] == (16, 32)
    with gin.config_scope("probe"):
        assert build_world() == ("a:b", 3)


def test_diamond_include_is_no_duplicate():
    pathlib.Path("a.gin").write_text("include 'ppo/base.gin'\n")
    gin_files.parse(["a.gin", "ppo/task.gin"])
    assert trainer()[0] == 7


@pytest.mark.parametrize(
    ("bindings", "message"),
    [
        (
            ["trainr.total_steps=1"],
            "Gin binding trainr.total_steps (--gin_bindings): expected the name of a configurable "
            "before the dot, got 'trainr', which is unknown. Did you mean trainer.total_steps?",
        ),
        (
            ["trainer.total_stepz=1"],
            "Gin binding trainer.total_stepz (--gin_bindings): expected a parameter of trainer, "
            "got 'total_stepz'. Did you mean total_steps",
        ),
        (
            ["trainer.hidden=1"],
            "Gin binding trainer.hidden (--gin_bindings): expected a parameter of trainer, "
            "got 'hidden'.",
        ),
        (
            ["twin.x=1"],
            "Gin name twin (--gin_bindings): expected the name of one configurable, got an "
            "ambiguous name. Write one.place.twin or other.place.twin.",
        ),
        (
            ["trainer.network=@Ned()"],
            "Gin name @Ned (--gin_bindings): expected the name of one configurable, got an "
            "unknown name. Did you mean Net",
        ),
        (
            ["trainer.rate=%ratee", "rate=1.0", "trainer.network=%rate"],
            "Gin macro %ratee in trainer.rate (--gin_bindings): expected a macro that is defined, "
            "got no line 'ratee = value'. Did you mean rate?",
        ),
        (
            ["trainer.rate=%rate"],
            "Gin macro %rate in trainer.rate (--gin_bindings): expected a macro that is defined, "
            "got no line 'rate = value'. Add 'rate = value'.",
        ),
        (
            ["trainer.rate"],
            "Gin binding 'trainer.rate': expected name.parameter=value, got no '='. Write for "
            "example --gin_bindings='train.total_env_steps=100000'.",
        ),
        (
            ["total_steps=3"],
            "Gin binding total_steps (--gin_bindings): expected name.parameter = value, or a macro "
            "that a value uses as %total_steps, got 'total_steps' without a dot, which is unused. "
            "Did you mean trainer.total_steps?",
        ),
        (
            ["prob/build_world.num_worlds=3"],
            "Gin binding prob/build_world.num_worlds (--gin_bindings): expected a scope that the "
            "program opens, got scope 'prob'. Did you mean probe?",
        ),
        (
            ["trainer.network=@prove/Net()"],
            "Gin reference in trainer.network (--gin_bindings): expected a scope that the program "
            "opens, got scope 'prove'. Did you mean probe?",
        ),
        (
            ["trainer.rate=1.0", "tests.gin_files.trainer.rate=2.0"],
            "Gin binding tests.gin_files.trainer.rate (--gin_bindings): expected one value, got a "
            "second one; the first is 1.0 (--gin_bindings).",
        ),
        (
            ["include 'ppo/base.gin' = 3"],
            None,
        ),
        (
            ["import no_such_module_=1"],
            None,
        ),
        (["trainer.sizes=(1,"], None),
        (["trainer.rate="], None),
        (["=3"], None),
        (["trainer..rate=3"], None),
        (["trainer.rate=1.0 2.0"], None),
        (["trainer.name='open"], None),
        (["1trainer.rate=1.0"], None),
        ([" trainer.rate == 1.0"], None),
    ],
)
def test_mistakes_in_bindings(bindings, message):
    text = _error(bindings=bindings)
    if message is None:
        assert text.startswith("Gin ")
        assert "--gin_bindings" in text
    else:
        assert text.startswith(message)


def test_text_without_quotes_is_explained():
    text = _error(bindings=["build_world.world_id=tf:CartPole-v1"])
    assert text.startswith("Gin binding 'build_world.world_id=tf:CartPole-v1' (--gin_bindings): ")
    assert "Text needs quotes: build_world.world_id='tf:CartPole-v1'." in text


def test_missing_file_names_both_places_and_the_nearest(package):
    assert _error(["ppo/taks.gin"]) == (
        "Gin file 'ppo/taks.gin' (--gin_file): expected a file in the working directory or in the "
        f"package, got none at {pathlib.Path.cwd() / 'ppo/taks.gin'} nor at "
        f"{package / 'ppo/taks.gin'}. Did you mean ppo/task.gin or ppo/base.gin?"
    )


def test_missing_include_names_its_line():
    pathlib.Path("mine.gin").write_text("# A comment.\ninclude 'ppo/bose.gin'\n")
    text = _error(["mine.gin"])
    assert text.startswith(f"Gin file 'ppo/bose.gin' ({pathlib.Path.cwd() / 'mine.gin'}:2): ")
    assert "Did you mean ppo/base.gin" in text


def test_circular_include():
    pathlib.Path("a.gin").write_text("include 'b.gin'\n")
    pathlib.Path("b.gin").write_text("include 'a.gin'\n")
    assert "files without circular includes, got a.gin -> b.gin -> a.gin" in _error(["a.gin"])


def test_mistake_in_a_file_names_the_line():
    pathlib.Path("mine.gin").write_text("trainer.rate = 1.0\n\ntrainer.stepz = 3\n")
    text = _error(["mine.gin"])
    assert text.startswith(f"Gin binding trainer.stepz ({pathlib.Path.cwd() / 'mine.gin'}:3): ")


def test_syntax_error_in_a_file_names_the_line():
    pathlib.Path("mine.gin").write_text("trainer.rate = 1.0\ntrainer.name = abc\n")
    text = _error(["mine.gin"])
    assert f"Gin binding 'trainer.name = abc' ({pathlib.Path.cwd() / 'mine.gin'}:2)" in text
    assert "Text needs quotes: trainer.name='abc'." in text


def test_duplicate_in_one_file():
    pathlib.Path("mine.gin").write_text("trainer.rate = 1.0\ntrainer.rate = 2.0\n")
    assert f"the first is 1.0 ({pathlib.Path.cwd() / 'mine.gin'}:1)" in _error(["mine.gin"])


def test_missing_import():
    pathlib.Path("mine.gin").write_text("import no_such_module_at_all\n")
    text = _error(["mine.gin"])
    assert text.startswith("Gin import of no_such_module_at_all (")
    assert "No module named 'no_such_module_at_all'" in text


@pytest.mark.parametrize(
    ("binding", "expected"),
    [
        ("trainer.total_steps='abc'", "int, got 'abc' (str)"),
        ("trainer.total_steps=True", "int, got True (bool)"),
        ("trainer.total_steps=1.5", "int, got 1.5 (float)"),
        ("trainer.total_steps=None", "int, got None (NoneType)"),
        ("trainer.rate='1'", "float, got '1' (str)"),
        ("trainer.rate=False", "float, got False (bool)"),
        ("trainer.sizes=64", "tuple[int, ...], got 64 (int)"),
        ("trainer.sizes=(64, 'a')", "tuple[int, ...], got (64, 'a') (tuple)"),
        ("trainer.mode='of'", "one of 'on', 'off', got 'of' (str)"),
        ("trainer.kind='fats'", "one of 'FAST', 'SLOW', got 'fats' (str)"),
        ("trainer.name=3", "str or None, got 3 (int)"),
        ("trainer.flag=1", "bool, got 1 (int)"),
        ("trainer.table={'a': 'b'}", "dict[str, float] or None, got {'a': 'b'} (dict)"),
        ("Net.width=0.5", "int, got 0.5 (float)"),
        ("probe/Net.width=0.5", "int, got 0.5 (float)"),
    ],
)
def test_wrong_types(binding, expected):
    key = binding.partition("=")[0]
    plain = key.removeprefix("probe/")
    wanted = expected.partition(", got ")[0]
    assert _error(bindings=[binding]) == (
        f"Gin binding {key}: expected {expected}. Write {plain} = <{wanted}>."
    )


def test_a_schedule_is_a_reference():
    from tfrl.launch import configurables  # noqa: F401  registers OpenES

    text = _error(bindings=["OpenES.lr_schedule=[[0, 0.1], [10, 0.01]]"])
    assert "Write OpenES.lr_schedule = <float or Schedule>" in text
    assert text.endswith("A schedule is a reference: OpenES.lr_schedule = @LinearSchedule().")


def test_wrong_type_through_a_macro():
    text = _error(bindings=["size='big'", "trainer.total_steps=%size"])
    assert text.startswith("Gin binding trainer.total_steps: expected int, got 'big' (str).")


@pytest.mark.parametrize(
    "binding",
    [
        "trainer.rate=1",
        "trainer.sizes=[1, 2]",
        "trainer.sizes=()",
        "trainer.mode='off'",
        "trainer.kind='SLOW'",
        "trainer.kind='slow'",
        "trainer.name=None",
        "trainer.name='a'",
        "trainer.table={'a': 1}",
        "trainer.network=3",
        "trainer.network=@Net",
        "trainer.total_steps=@build_world()",  # What a call gives is not known beforehand.
        "trainer.implicit=None",
        "trainer.unknown='anything'",
        "trainer.total_steps=-1",
        "trainer.total_steps=%gin.REQUIRED",
    ],
)
def test_right_types(binding):
    gin_files.parse([], [binding])
    assert gin_registry.bound()


def test_every_used_binding_passes():
    gin_files.parse([], ["trainer.rate=1.0", "n=2", "probe/build_world.num_worlds=%n"])
    trainer()
    with gin.config_scope("probe/inner"):
        world = build_world()
    gin_files.check_used()
    assert world == ("a:b", 2) and gin_registry.bound()


def test_unused_bindings_are_named():
    gin_files.parse([], ["trainer.rate=1.0", "probe/build_world.num_worlds=2", "Net.width=3"])
    build_world()  # Not in the scope.
    trainer(rate=2.0)  # The program's own value wins.
    with pytest.raises(UserError) as error:
        gin_files.check_used()
    assert str(error.value) == (
        "Gin bindings Net.width, probe/build_world.num_worlds, trainer.rate: expected bindings "
        "that this run uses, got bindings that it does not read. Remove them, or choose the "
        "component that they configure."
    )


def test_operative_config_parses_again():
    gin_files.parse(["ppo/task.gin"], ["n=2", "probe/build_world.num_worlds=%n"])
    trainer()
    with gin.config_scope("probe"):
        build_world()
    text = gin.operative_config_str()
    pathlib.Path("operative_config.gin").write_text(text)
    gin_files.parse(["operative_config.gin"])
    assert trainer()[:2] == (7, 0.5)
    with gin.config_scope("probe"):
        assert build_world() == ("x:y", 2)


def test_a_flag_bound_as_a_macro_is_named():
    with pytest.raises(UserError) as error:
        gin_files.parse([], ["seed=3"])
    assert str(error.value).endswith("which is unused. It is a flag: --seed=3.")
    with pytest.raises(UserError) as error:
        gin_files.parse([], ["zzzzzz=3"])
    assert len(str(error.value)) < 800


def test_names_of_other_libraries():
    with pytest.raises(UserError, match="Did you mean lr?"):
        gin_files.parse([], ["Holder.learning_rate=1e-3"])
    with pytest.raises(UserError, match="Did you mean discount?"):
        gin_files.parse([], ["Holder.gamma=0.9"])


def test_bindings_hold_for_subclasses():
    gin_files.parse([], ["Base.a=10", "Derived.b=21"])
    made = Derived()
    assert (made.a, made.b, made.c) == (10, 21, 3)
    gin_files.check_used()
    config = gin_registry.operative_config()
    assert "Derived.a = 10" in config and "Derived.b = 21" in config
    assert gin_registry.configuration() == {"Derived.a": "10", "Derived.b": "21"}
    made = Further()
    assert (made.a, made.b) == (10, 21)  # the nearest base counts


def test_inherited_bindings_in_scopes():
    gin_files.parse([], ["Base.a=10", "probe/Base.a=11"])
    with gin.config_scope("probe"):
        assert Derived().a == 11
    assert Derived().a == 10


def test_a_binding_for_nobody_is_named_under_its_own_name():
    gin_files.parse([], ["Base.a=10", "Derived.c=30"])
    Derived()
    gin_files.check_used()
    gin_files.parse([], ["Derived.a=10", "Base.b=20"])
    Base()
    with pytest.raises(UserError, match=r"Gin binding .*Derived.a: expected bindings that"):
        gin_files.check_used()


def test_a_line_of_the_users_own_file_must_be_read(tmp_path):
    """Shipped files may bind what a user's line replaces; a file of the user's may not."""
    path = tmp_path / "own.gin"
    path.write_text("Holder.part = @Base\nBase.a = 3\n")
    gin_files.parse([str(path)], ["Holder.part=1"])
    Holder()
    with pytest.raises(UserError, match="Base.a: expected bindings that this run uses"):
        gin_files.check_used()


def test_a_whole_number_is_an_int():
    gin_files.parse([], ["trainer.total_steps=1e5"])
    assert gin.query_parameter("trainer.total_steps") == 100_000
    assert isinstance(gin.query_parameter("trainer.total_steps"), int)
    with pytest.raises(UserError, match="expected int"):
        gin_files.parse([], ["trainer.total_steps=1.5"])
    gin_files.parse([], ["trainer.rate=1.0"])
    assert isinstance(gin.query_parameter("trainer.rate"), float)


def test_what_is_written_at_its_default_is_the_same():
    before = {"Base.a": "10", "eval/Base.b": "2"}
    now = {"Base.a": "10", "Base.b": "2", "eval/Base.a": "10"}
    assert gin_registry.completed(before, now) == gin_registry.completed(now, before)
    now["eval/Base.a"] = "11"
    assert gin_registry.completed(before, now) != gin_registry.completed(now, before)


def test_equal_values_are_written_alike():
    before = {"A.a": "0.0", "A.b": "(1, 2)", "A.c": "True", "A.d": "@M()", "A.e": "{'x': 1.0}"}
    now = {"A.a": "0", "A.b": "[1, 2]", "A.c": "1", "A.d": "@M()", "A.e": "{'x': 1}"}
    assert gin_registry.as_written(now, before) == {**before, "A.c": "1"}
    assert not gin_registry.equal_texts("'True'", "True")
    assert not gin_registry.equal_texts("{True: 1}", "{1: 1}")


@pytest.mark.parametrize(
    ("more", "bindings", "expected"),
    [
        ("", (), "total_steps = 64"),
        ("", ("total_steps = 128",), "train.total_env_steps = 64"),  # of a longer schedule
        ("InGraphReplay.capacity = %total_steps", (), "train.total_env_steps = 64"),
        ("train.total_env_steps = 32", (), "train.total_env_steps = 64"),
    ],
)
def test_a_budget_sets_the_macro_that_only_schedules_share(tmp_path, more, bindings, expected):
    path = tmp_path / "mine.gin"
    tied = "train.total_env_steps = %total_steps\nLinearSchedule.steps = %total_steps"
    path.write_text(f"total_steps = 1000\n{tied}\n{more}\n")
    assert gin_files.budget_binding([str(path)], bindings, 64) == expected
