"""Descriptions of objects: round trips through JSON, what is refused, what is not built."""

import collections
import dataclasses
import enum
import json
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.framework import tensor_spec

from tfrl import distributions, networks, specs, struct
from tfrl.agents.ppo.agent import PPO
from tfrl.errors import UserError
from tfrl.keras import api as keras
from tfrl.loading import UnknownNameError, loadable, resolve
from tfrl.ops import schedules
from tfrl.storage import codec


@loadable
class Color(enum.Enum):
    RED = 1


@loadable
@dataclasses.dataclass(frozen=True)
class Plain:
    a: int
    b: tuple = ()
    twice: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        object.__setattr__(self, "twice", 2 * self.a)


@loadable
@struct.dataclass
class WithArrays:
    table: np.ndarray
    size: int = struct.field(static=True, default=3)


@loadable
@struct.logic_dataclass
class Config:
    lr: object = 3e-4
    clip_by: str = "norm"

    def __post_init__(self):
        if self.clip_by not in ("norm", "value"):
            raise UserError("Config.clip_by", expected="a kind", got=self.clip_by, remedy="No.")


class NoDataclass(Plain):
    """Inherits the fields, and is none itself."""


Pair = collections.namedtuple("Pair", "a b")


@loadable
def make_model():
    return keras.Sequential([keras.layers.Dense(5)])


def through_json(obj):
    return codec.build(json.loads(json.dumps(codec.describe(obj), allow_nan=False)))


OBS = tf.TensorSpec([4], tf.float32)
ACTION = specs.DiscreteSpec(2)
DICT_OBS = {
    "own": specs.BoundedTensorSpec([3], tf.float32, [-1, -2, -np.inf], [1, 2, np.inf], "own"),
    "place": (specs.MultiDiscreteSpec([3, 4], [0, 1]), specs.BinarySpec(4), specs.BinarySpec((4,))),
}
IMAGE = specs.BoundedTensorSpec(
    [84, 84, 4], tf.uint8, np.zeros([84, 84, 4]), np.full([84, 84, 4], 255)
)


class TestRoundTrip:
    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            3,
            2**70,
            0.1,
            -0.0,
            math.inf,
            -math.inf,
            "text",
            "",
            (),
            (1, (2.0, "x")),
            [1, [2]],
            {"a": 1, 2: "b", ("c", 1): None},
            {"kind": "float", "value": "nan"},
            tf.float32,
            tf.bfloat16,
            np.dtype(np.uint8),
            np.float32(0.1),
            np.int64(2**62),
            tf.TensorShape([None, 3]),
            tf.TensorShape(None),
            tf.TensorSpec([None, 2], tf.int32, "x"),
            tensor_spec.BoundedTensorSpec([2], tf.float32, 0.0, 1.0),
            OBS,
            ACTION,
            specs.DiscreteSpec(5, start=-2, dtype=tf.int32, name="move"),
            DICT_OBS,
            IMAGE,
            Color.RED,
            Color,
            Plain,
            make_model,
            Plain(1, (2, Color.RED)),
            Config(lr=[[0, 1e-3], [100, 0.0]]),
        ],
        ids=lambda v: getattr(v, "__name__", None) or repr(v)[:40],
    )
    def test_value(self, value):
        found = through_json(value)
        assert found == value
        assert type(found) is type(value)

    def test_nan(self):
        assert math.isnan(through_json(math.nan))
        assert through_json((math.nan,))[0] != 0

    @pytest.mark.parametrize(
        "array",
        [
            np.array([[1.5, np.nan], [np.inf, 0.1]], np.float32),
            np.zeros([0, 3], np.int8),
            np.array(True),
            np.full([2, 3], -np.inf),
            np.full([3], np.nan),
            np.array([2**64 - 1, 0], np.uint64),
        ],
    )
    def test_array(self, array):
        found = through_json(array)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)

    def test_dataclass_of_arrays(self):
        found = through_json(WithArrays(table=np.arange(6.0).reshape(2, 3), size=7))
        np.testing.assert_array_equal(found.table, [[0, 1, 2], [3, 4, 5]])
        assert found.size == 7

    def test_a_large_bound_is_short(self):
        assert len(json.dumps(codec.describe(IMAGE))) < 1000

    @pytest.mark.parametrize(
        "agent",
        [
            PPO(obs_spec=OBS, action_spec=ACTION),
            PPO(
                obs_spec=DICT_OBS,
                action_spec={"move": OBS, "press": specs.BinarySpec(2)},
                hidden=(32,),
                obs_key="own",
                normalize_obs=True,
                entropy_coef=schedules.LinearSchedule(0.01, 0.0, 1e6),
                target_kl=0.02,
            ),
            PPO(
                obs_spec=IMAGE,
                action_spec=ACTION,
                policy=networks.PolicyNetwork(
                    torso=networks.make_torso(IMAGE, kind="impala_cnn"),
                    distribution=distributions.make_distribution(ACTION),
                    head_scale=0.1,
                ),
            ),
            PPO(
                obs_spec=OBS,
                action_spec=ACTION,
                value=networks.ValueNetwork(
                    torso=networks.KerasNetwork(model_fn=make_model, spec=OBS)
                ),
            ),
        ],
        ids=["default", "nested", "image", "keras"],
    )
    def test_ppo(self, agent):
        found = through_json(agent)
        assert found == agent
        assert found.policy_network == agent.policy_network
        assert found is not agent
        other = agent.replace(clip=0.3)
        assert through_json(other) != agent

    JSON = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        ),
        max_leaves=10,
    )

    @settings(deadline=None, max_examples=100)
    @given(value=JSON)
    def test_any_nest(self, value):
        assert repr(through_json(value)) == repr(value)


class TestRefused:
    def message(self, obj, name="module 'default_policy'"):
        with pytest.raises(UserError) as error:
            codec.describe(obj, name)
        return str(error.value)

    def test_the_paragraph(self):
        agent = PPO(
            obs_spec=OBS,
            action_spec=ACTION,
            value=networks.ValueNetwork(
                torso=networks.KerasNetwork(model_fn=lambda: make_model(), spec=OBS)
            ),
        )
        assert self.message(agent) == (
            "module 'default_policy'/value/torso/model_fn: expected a serializable object: "
            "numbers, strings, specs, dataclasses of these, functions and classes of a module, "
            "got a lambda, which has no name. Pass the object itself, as in from_checkpoint(path, "
            "modules=...)."
        )

    def test_what_has_no_words(self):
        def local():
            return None

        class Local:
            pass

        for obj, got in [
            (local, "TestRefused.test_what_has_no_words.<locals>.local, which is defined inside"),
            (Local, "<locals>.Local, which is defined inside a function"),
            (make_model(), "keras.src.engine.sequential.Sequential"),
            (tf.constant(1.0), "EagerTensor"),
            (tf.Variable(1.0), "ResourceVariable"),
            (Plain(1).__post_init__, "a builtins.method"),
            (Pair(1, 2), "Pair"),
            (collections.OrderedDict(), "a collections.OrderedDict"),
            (NoDataclass(1), "NoDataclass"),
            (np.array(["x"]), "an array of dtype <U1"),
            (len, "a builtins.builtin_function_or_method"),
            ({1, 2}, "a builtins.set"),
        ]:
            text = self.message((obj,), "object")
            assert text.startswith("object/0: expected a serializable object: numbers")
            assert got in text

    def test_paths(self):
        assert self.message({"a": [0, {3: object()}]}, "x").startswith("x/a/1/3: ")
        assert self.message(Plain(1, (object(),)), "x").startswith("x/b/0: ")


@pytest.mark.parametrize(
    "damaged", [{"kind": []}, {"kind": "array", "dtype": "int8", "shape": [10**15], "fill": 0}]
)
def test_damaged_values_are_refused(damaged):
    with pytest.raises(UserError):
        codec.build(damaged)


class TestNotBuilt:
    def message(self, description):
        with pytest.raises(UserError) as error:
            codec.build(description, "module 'a'")
        return str(error.value)

    @pytest.mark.parametrize(
        ("description", "got"),
        [
            ({"kind": "object", "class": "os:system", "fields": {}}, "is not registered"),
            ({"kind": "object", "class": "subprocess:Popen", "fields": {}}, "is not registered"),
            ({"kind": "object", "class": "shutil:rmtree", "fields": {}}, "is not registered"),
            ({"kind": "object", "class": "a.b", "fields": {}}, "is not registered"),
            ({"kind": "object", "class": "x:f()", "fields": {}}, "is not registered"),
            ({"kind": "object", "class": "no_such_module:X", "fields": {}}, "is not registered"),
            (
                {"kind": "object", "class": "tfrl.specs:NoSuchSpec", "fields": {}},
                "is not registered",
            ),
            ({"kind": "object"}, "a description that fails with KeyError('class')"),
            ({"kind": "enum", "class": "builtins:dict", "name": "x"}, "is not registered"),
            ({"kind": "name", "name": "os:popen"}, "tfrl.loadable(popen)"),
            ({"kind": "enum", "class": f"{__name__}:Plain", "name": "x"}, "is not an Enum"),
            (
                {"kind": "object", "class": f"{__name__}:make_model", "fields": {}},
                "is not a dataclass",
            ),
            ({"kind": "name", "name": 3}, "the name 3, which is not registered"),
            (
                {"kind": "spec", "class": "os", "arguments": []},
                "a description that fails with KeyError",
            ),
            ({"kind": "pickle"}, "a description of kind 'pickle'"),
            ({}, "a description of kind None"),
            (3j, "a description of kind None"),
        ],
    )
    def test_refused(self, description, got):
        text = self.message(description)
        assert text.startswith(
            "description of module 'a': expected a description that this version can build"
        )
        assert got in text
        assert "Pass the object itself, as in from_checkpoint(" in text

    def test_a_class_that_has_changed(self):
        description = codec.describe(Config())
        description["fields"]["momentum"] = 0.9
        text = self.message([description])
        assert "description of module 'a'/0" in text
        assert "unknown fields ['momentum'], missing fields []" in text
        description = codec.describe(Plain(1))
        del description["fields"]["a"]
        assert "unknown fields [], missing fields ['a']" in self.message(description)
        del description["fields"]["b"]  # it has a default
        description["fields"]["a"] = 4
        assert codec.build(description) == Plain(4)

    def test_a_class_checks_its_own_fields(self):
        description = codec.describe(Config())
        description["fields"]["clip_by"] = "nonsense"
        with pytest.raises(UserError, match="Config.clip_by"):
            codec.build(description)

    def test_a_thousand_brackets(self):
        description = 1
        for _ in range(10_000):
            description = [description]
        assert "a description that is nested too deeply" in self.message(description)

    def test_nothing_is_imported_by_a_name(self, tmp_path, monkeypatch):
        """A module that the file names is not even looked for."""
        (tmp_path / "foreign.py").write_text("raise SystemExit('imported')")
        monkeypatch.syspath_prepend(tmp_path)
        for kind in ("name", "object", "enum"):
            description = {"kind": kind, "name": "foreign:f", "class": "foreign:f", "fields": {}}
            assert "the name 'foreign:f'" in self.message(description)


class TestLoadable:
    def test_it_takes_what_has_a_name(self):
        with pytest.raises(UnknownNameError, match="a lambda"):
            loadable(lambda: None)
        with pytest.raises(UnknownNameError, match="inside a function"):
            loadable(type("Local", (), {"__qualname__": "f.<locals>.Local"}))
        with pytest.raises(UnknownNameError, match="a int"):
            loadable(3)

    def test_functions_of_libraries_once_they_are_registered(self):
        description = codec.describe(tf.nn.relu)
        with pytest.raises(UserError, match="not registered here"):
            codec.build(description)
        loadable(tf.nn.relu)
        assert codec.build(description) is tf.nn.relu

    def test_a_file_may_name_the_module_of_before(self):
        from tfrl import loading, networks

        assert resolve("tfrl.networks.impala:ImpalaCNN") is networks.ImpalaCNN
        for module in set(loading._MOVED.values()):
            assert any(name.startswith(f"{module}:") for name in loading._loadable)

    def test_what_the_library_itself_can_have_built_has_no_way_out(self):
        """Its records and logic are registered; nothing that opens files, runs or imports is."""
        from tfrl import loading

        own = {n: obj for n, obj in loading._loadable.items() if n.startswith("tfrl.")}
        assert "tfrl.agents.ppo.agent:PPO" in own
        for name, obj in own.items():
            assert isinstance(obj, type), name
            assert dataclasses.is_dataclass(obj) or issubclass(obj, enum.Enum), name
        with pytest.raises(UnknownNameError):
            resolve("tfrl.envs.registry:make_env")
