"""Recurrent torsos: features of the episode's observations so far."""

from typing import Any

import tensorflow as tf

from tfrl import checks, seeding, struct
from tfrl.errors import UserError
from tfrl.networks import layers
from tfrl.networks.core import Nest, Params, Torso, fold
from tfrl.networks.layers import initializer

# Blocks of `size` columns in a cell's kernels.
_GATES = {"gru": 3, "lstm": 4}
# Added to the forget gate, so that a new cell remembers (Jozefowicz et al. 2015, section 4.3,
# https://proceedings.mlr.press/v37/jozefowicz15.html).
_FORGET_BIAS = 1.0

Carry = dict[str, tf.Tensor]


@struct.logic_dataclass
class RecurrentTorso(Torso):
    """A torso and a recurrent cell after it.

    LSTM (Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735), with x the
    features of the body, i, f, o in (0, 1) and all of them linear in x and h:
      c' = f c + i g,  h' = o tanh(c')
    GRU (Cho et al. 2014, https://arxiv.org/abs/1406.1078, with the reset gate after the matrix, as
    in cuDNN):
      n = tanh(W x + r (U h + b)),  h' = (1 - z) n + z h

    The carry is `{"hidden": [B, size]}`, plus `"cell": [B, size]` for an LSTM; zeros at the start
    of an episode. `step` is for acting, `unroll` for losses; there is no `apply`, since the output
    needs a carry.

    Attributes:
      body: Observations to the features that the cell takes.
      cell: "lstm" or "gru".
      size: Number of output features, and size of the carry.
      kernel_init: "orthogonal", "lecun_normal" or "lecun_uniform".
      kernel_scale: The gain of the initialiser.
    """

    body: Torso
    cell: str = "lstm"
    size: int = 128
    kernel_init: str = "orthogonal"
    kernel_scale: float = 1.0

    def __post_init__(self) -> None:
        """Checks the names and the size."""
        checks.one_of("RecurrentTorso.cell", self.cell, sorted(_GATES))
        checks.at_least("RecurrentTorso.size", self.size, 1)
        if self.body.recurrent:
            raise UserError(
                "RecurrentTorso.body",
                expected="a feed-forward torso",
                got=type(self.body).__name__,
            )
        initializer(self.kernel_init)

    @property
    def recurrent(self) -> bool:
        """True."""
        return True

    def output_size(self, spec: Nest) -> int:
        """Returns `size`."""
        return self.size

    def init(self, key: tf.Tensor, spec: Nest) -> Params:
        """Makes `{"body", "input": {"kernel", "bias"}, "recurrent": {"kernel", "bias"}}`.

        The kernels are `[F, G size]` and `[size, G size]`, each block of `size` columns initialised
        on its own; G is 3 for a GRU (r, z, n) and 4 for an LSTM (i, f, g, o).
        """
        features = self.body.output_size(spec)
        return {
            "body": self.body.init(seeding.stream(key, "body"), spec),
            "input": self._init_part(seeding.stream(key, "input"), features),
            "recurrent": self._init_part(seeding.stream(key, "recurrent"), self.size),
        }

    def _init_part(self, key: tf.Tensor, size_in: int) -> Params:
        gates = _GATES[self.cell]
        make = initializer(self.kernel_init)
        shape = (size_in, self.size)
        kernels = [make(k, shape, self.kernel_scale) for k in seeding.split(key, gates)]
        return {"kernel": tf.concat(kernels, 1), "bias": tf.zeros([gates * self.size])}

    def initial_carry(self, batch_size: int) -> Carry:
        """Returns zeros, the carry at the start of an episode."""
        names = ("hidden",) if self.cell == "gru" else ("hidden", "cell")
        return {name: tf.zeros([batch_size, self.size]) for name in names}

    def apply(self, params: Params, x: Nest) -> tf.Tensor:
        """Raises a UserError: the output needs a carry."""
        raise UserError(
            "RecurrentTorso",
            expected="a call of step(params, x, carry) or unroll(params, x, carry, starts)",
            got="apply(params, x)",
        )

    def step(self, params: Params, x: Nest, carry: Nest = None) -> tuple[tf.Tensor, Carry]:
        """Takes one step.

        Args:
          params: As from `init`; or stacked on a leading population axis P, which `x` and the
            carry then have too.
          x: Observations `[B, ...]`.
          carry: The carry before the step, leaves `[B, size]`.

        Returns:
          Features `[B, size]`, and the carry after the step.

        Raises:
          UserError: Without a carry, since zeros in every step would change the policy.
        """
        _check_carry(carry)
        projected, restore = self._projected(params, self.body.apply(params["body"], x))
        after = self._cell(params["recurrent"], restore(projected), carry)
        return after["hidden"], after

    def unroll(
        self, params: Params, x: Nest, carry: Nest, starts: tf.Tensor, key: tf.Tensor | None
    ) -> tuple[tf.Tensor, Params]:
        """Goes over sequences.

        Args:
          params: As from `init`, not stacked.
          x: Observations `[T, B, ...]`.
          carry: The carry before the first step, leaves `[B, size]`.
          starts: bool `[T, B]`, True where an observation is the first of an episode: the carry is
            zeros there.
          key: int32 [2], for a body that draws random numbers; None for one in inference mode.

        Returns:
          Features `[T, B, size]`, and the parameters after the call.

        Raises:
          UserError: Without a carry.
        """
        _check_carry(carry)
        features, body = self.body.unroll(params["body"], x, None, starts, key)
        # All inputs in one matmul: only the recurrent product depends on the previous step.
        projected, restore = self._projected(params, features)
        hidden = self._scan(params["recurrent"], restore(projected), carry, starts)
        return hidden, {**params, "body": body}

    def _projected(self, params: Params, features: tf.Tensor) -> Any:
        flat, restore = fold(features, 1, params["input"]["kernel"].shape.rank == 3)
        return layers.dense(params["input"], flat), restore

    def _scan(
        self, recurrent: Params, projected: tf.Tensor, carry: Carry, starts: tf.Tensor
    ) -> tf.Tensor:
        steps, batch = projected.shape[0], projected.shape[1]
        starts = starts[..., tf.newaxis]  # [T, B, 1]
        # Read once: a variable inside the loop would be read, and differentiated, in every step.
        recurrent = struct.values(recurrent)
        outputs = tf.TensorArray(tf.float32, steps, element_shape=[batch, self.size])

        def body(t: tf.Tensor, carry: Carry, outputs: tf.TensorArray) -> Any:
            first = tf.gather(starts, t)
            before = {name: tf.where(first, tf.zeros_like(x), x) for name, x in carry.items()}
            after = self._cell(recurrent, tf.gather(projected, t), before)
            return t + 1, after, outputs.write(t, after["hidden"])

        # XLA differentiates a loop only with a known maximum length.
        *_, outputs = tf.while_loop(
            lambda t, *_: t < steps,
            body,
            (tf.constant(0), carry, outputs),
            maximum_iterations=steps,
            name="recurrence",
        )
        return tf.ensure_shape(outputs.stack(), [steps, batch, self.size])

    def _cell(self, recurrent: Params, projected: tf.Tensor, carry: Carry) -> Carry:
        """One step from projected inputs `[..., G size]`."""
        hidden = carry["hidden"]
        own = tf.split(layers.dense(recurrent, hidden), _GATES[self.cell], axis=-1)
        gates = tf.split(projected, _GATES[self.cell], axis=-1)
        if self.cell == "gru":
            reset, update = (tf.sigmoid(gates[i] + own[i]) for i in range(2))
            new = tf.tanh(gates[2] + reset * own[2])
            return {"hidden": new + update * (hidden - new)}
        i, f, g, o = (a + b for a, b in zip(gates, own, strict=True))
        cell = tf.sigmoid(f + _FORGET_BIAS) * carry["cell"] + tf.sigmoid(i) * tf.tanh(g)
        return {"hidden": tf.sigmoid(o) * tf.tanh(cell), "cell": cell}


def _check_carry(carry: Nest) -> None:
    """Raises an error without a carry: silent zeros in every step would change the policy."""
    if carry is None:
        raise UserError(
            "RecurrentTorso",
            expected="a carry",
            got="None",
            remedy="Start an episode with initial_carry(batch_size), and pass on the carry that "
            "each step returns.",
        )
