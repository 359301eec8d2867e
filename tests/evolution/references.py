"""Strategies in NumPy, float64, as their papers write them: ask(rng) and tell(x, f), maximising."""

import cma
import cmaes
import numpy as np

from tests.evolution.problems import told


def _ranked(x, f, num):
    return x[np.argsort(-f, kind="stable")[:num]]


def _log_weights(num, start):
    raw = np.log(start) - np.log(np.arange(1, num + 1))
    return raw / raw.sum()


def _centred_ranks(f):
    return np.argsort(np.argsort(f, kind="stable"), kind="stable") / (len(f) - 1) - 0.5


def _utilities(f):
    size = len(f)
    raw = np.maximum(0.0, np.log(size / 2 + 1) - np.log(np.arange(1, size + 1)))
    u = np.empty(size)
    u[np.argsort(-f, kind="stable")] = raw / raw.sum() - 1 / size
    return u


class _Mirrored:
    def ask(self, rng):
        z = rng.standard_normal((self.p // 2, len(self.mean)))
        return self.mean + self.sigma * np.concatenate([z, -z])


class _Plain:
    def ask(self, rng):
        return self.mean + self.sigma * rng.standard_normal((self.p, len(self.mean)))


class OpenES(_Mirrored):
    """Salimans et al. 2017 with Adam; sigma is multiplied by `decay` each generation."""

    def __init__(self, mean, p, lr, sigma, decay=1.0, weight_decay=0.0):
        self.mean, self.p, self.lr, self.sigma = np.array(mean, float), p, lr, sigma
        self.decay, self.weight_decay = decay, weight_decay
        self.m = self.v = np.zeros(len(mean))
        self.t = 0

    def tell(self, x, f):
        self.t += 1
        gradient = _centred_ranks(f) @ (x - self.mean) / (self.p * self.sigma**2)
        gradient -= self.weight_decay * self.mean
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v = 0.999 * self.v + 0.001 * gradient**2
        step = self.m / (np.sqrt(self.v) + 1e-5)
        step *= np.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        self.mean = self.mean + self.lr * step
        self.sigma *= self.decay


class VanillaES(_Plain):
    """Chrabaszcz et al. 2018, algorithm 1."""

    def __init__(self, mean, p, mu, sigma, decay=1.0):
        self.mean, self.p, self.mu, self.sigma = np.array(mean, float), p, mu, sigma
        self.decay = decay

    def tell(self, x, f):
        self.mean = _log_weights(self.mu, self.mu + 0.5) @ _ranked(x, f, self.mu)
        self.sigma *= self.decay


class ARS(_Mirrored):
    """Mania et al. 2018, algorithm 2."""

    def __init__(self, mean, p, b, alpha, sigma, scale=True):
        self.mean, self.p, self.b = np.array(mean, float), p, b
        self.alpha, self.sigma, self.scale = alpha, sigma, scale

    def tell(self, x, f):
        plus, minus = np.split(f, 2)
        best = np.argsort(-np.maximum(plus, minus), kind="stable")[: self.b]
        delta = (x[: self.p // 2] - self.mean) / self.sigma
        std = np.std(np.concatenate([plus[best], minus[best]])) if self.scale else 1.0
        step = sum((plus[k] - minus[k]) * delta[k] for k in best)
        self.mean = self.mean + self.alpha / (self.b * std) * step


class PGPE(_Mirrored):
    """Sehnke et al. 2010, algorithm 2, on centred ranks, or on the fitness itself."""

    def __init__(self, mean, p, sigma, lr=0.2, std_lr=0.1, ranks=True):
        self.mean, self.p, self.lr, self.std_lr = np.array(mean, float), p, lr, std_lr
        self.sigma, self.ranks = np.full(len(mean), sigma), ranks

    def tell(self, x, f):
        num = self.p // 2
        w = _centred_ranks(f) if self.ranks else f
        e = x[:num] - self.mean
        r_t = (w[:num] - w[num:]) / 2
        r_s = (w[:num] + w[num:]) / 2 - w.mean()
        self.mean = self.mean + self.lr * r_t @ e / num
        change = self.std_lr * r_s @ ((e**2 - self.sigma**2) / self.sigma) / num
        self.sigma = self.sigma + np.clip(change, -0.2 * self.sigma, 0.2 * self.sigma)


class SNES(_Plain):
    """Wierstra et al. 2014, algorithm 6."""

    def __init__(self, mean, p, sigma):
        self.mean, self.p, self.sigma = np.array(mean, float), p, np.full(len(mean), sigma)

    def tell(self, x, f):
        d, u = len(self.mean), _utilities(f)
        s = (x - self.mean) / self.sigma
        self.mean = self.mean + self.sigma * (u @ s)
        self.sigma = self.sigma * np.exp((3 + np.log(d)) / (5 * np.sqrt(d)) / 2 * (u @ (s**2 - 1)))


class XNES:
    """Glasmachers et al. 2010, algorithm 1, with B and sigma apart."""

    def __init__(self, mean, p, sigma):
        self.mean, self.sigma, self.B = np.array(mean, float), sigma, np.eye(len(mean))

    def tell(self, x, f):
        d, u = len(self.mean), _utilities(f)
        eta = 3 / 5 * (3 + np.log(d)) / (d * np.sqrt(d))
        z = np.linalg.solve(self.sigma * self.B, (x - self.mean).T).T
        G_M = sum(w * (np.outer(row, row) - np.eye(d)) for w, row in zip(u, z, strict=True))
        G_sigma = np.trace(G_M) / d
        self.mean = self.mean + self.sigma * self.B @ (u @ z)
        self.sigma *= np.exp(eta / 2 * G_sigma)
        values, U = np.linalg.eigh(G_M - G_sigma * np.eye(d))
        self.B = self.B @ U @ np.diag(np.exp(eta / 2 * values)) @ U.T


class CEM:
    """Pourchot and Sigaud 2019, equations 1 and 2; the variance goes to `end` by `decay`."""

    def __init__(
        self, mean, p, k, std, noise=1e-3, decay=0.95, end=1e-5, diagonal=False, uniform=False
    ):
        self.mean, self.p, self.k = np.array(mean, float), p, k
        self.C = std**2 * np.eye(len(mean))
        self.noise, self.decay, self.end, self.diagonal = noise, decay, end, diagonal
        self.weights = np.full(k, 1 / k) if uniform else _log_weights(k, k + 1)

    def ask(self, rng):
        return rng.multivariate_normal(self.mean, self.C, self.p)

    def tell(self, x, f):
        y = _ranked(x, f, self.k) - self.mean
        C = sum(w * np.outer(row, row) for w, row in zip(self.weights, y, strict=True))
        C += self.noise * np.eye(len(self.mean))
        self.C = np.diag(np.diag(C)) if self.diagonal else C
        self.mean = self.mean + self.weights @ y
        self.noise = max(self.noise * self.decay, self.end)


class CMA:
    """Hansen 2016, version 1 of the tutorial, with the equations in its order."""

    def __init__(self, mean, p, sigma, active=True):
        n = len(mean)
        self.mean, self.sigma, self.p, self.mu = np.array(mean, float), sigma, p, p // 2
        w = np.log((p + 1) / 2) - np.log(np.arange(1, p + 1))
        self.mu_eff = w[: self.mu].sum() ** 2 / (w[: self.mu] ** 2).sum()
        mu_eff_minus = w[self.mu :].sum() ** 2 / (w[self.mu :] ** 2).sum()
        self.c_1 = 2 / ((n + 1.3) ** 2 + self.mu_eff)
        self.c_mu = 2 * (self.mu_eff - 2 + 1 / self.mu_eff) / ((n + 2) ** 2 + self.mu_eff)
        self.c_mu = min(1 - self.c_1, self.c_mu)
        alpha = min(
            1 + self.c_1 / self.c_mu,
            1 + 2 * mu_eff_minus / (self.mu_eff + 2),
            (1 - self.c_1 - self.c_mu) / (n * self.c_mu),
        )
        negative = alpha * w / -w[w < 0].sum() if active else 0 * w
        self.w = np.where(w >= 0, w / w[w > 0].sum(), negative)
        self.c_s = (self.mu_eff + 2) / (n + self.mu_eff + 5)
        self.d_s = 1 + 2 * max(0, np.sqrt((self.mu_eff - 1) / (n + 1)) - 1) + self.c_s
        self.c_c = (4 + self.mu_eff / n) / (n + 4 + 2 * self.mu_eff / n)
        self.chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self.p_s = self.p_c = np.zeros(n)
        self.C, self.g, self.waited = np.eye(n), 0, 0

    def tell(self, x, f):
        n, self.g = len(self.mean), self.g + 1
        y = (_ranked(x, f, self.p) - self.mean) / self.sigma
        values, B = np.linalg.eigh(self.C)
        inverse_root = B @ np.diag(values**-0.5) @ B.T
        y_w = self.w[: self.mu] @ y[: self.mu]
        self.mean = self.mean + self.sigma * y_w
        scale = np.sqrt(self.c_s * (2 - self.c_s) * self.mu_eff)
        self.p_s = (1 - self.c_s) * self.p_s + scale * inverse_root @ y_w
        length = np.linalg.norm(self.p_s)
        self.sigma *= np.exp(self.c_s / self.d_s * (length / self.chi - 1))
        grown = np.sqrt(1 - (1 - self.c_s) ** (2 * self.g))
        h = length / grown < (1.4 + 2 / (n + 1)) * self.chi
        self.waited += not h
        scale = np.sqrt(self.c_c * (2 - self.c_c) * self.mu_eff)
        self.p_c = (1 - self.c_c) * self.p_c + h * scale * y_w
        lengths = np.linalg.norm(y @ inverse_root, axis=1)
        w = np.where(self.w >= 0, self.w, self.w * n / lengths**2)
        delta = (1 - h) * self.c_c * (2 - self.c_c)
        self.C = (
            (1 + self.c_1 * delta - self.c_1 - self.c_mu * self.w.sum()) * self.C
            + self.c_1 * np.outer(self.p_c, self.p_c)
            + self.c_mu * sum(a * np.outer(b, b) for a, b in zip(w, y, strict=True))
        )


class SepCMA:
    """Ros and Hansen 2008; the rates of C sum to 1 at most."""

    def __init__(self, mean, p, sigma):
        n = len(mean)
        self.mean, self.sigma, self.mu = np.array(mean, float), sigma, p // 2
        self.w = _log_weights(self.mu, self.mu + 1)
        self.mu_eff = 1 / (self.w**2).sum()
        self.c_1 = 2 / ((n + 1.3) ** 2 + self.mu_eff)
        full = 2 / self.mu_eff / (n + np.sqrt(2)) ** 2
        full += (1 - 1 / self.mu_eff) * min(1, (2 * self.mu_eff - 1) / ((n + 2) ** 2 + self.mu_eff))
        self.c_mu = min((n + 2) / 3 * full, 1 - self.c_1)
        self.c_s = (self.mu_eff + 2) / (n + self.mu_eff + 3)
        self.d_s = 1 + 2 * max(0, np.sqrt((self.mu_eff - 1) / (n + 1)) - 1) + self.c_s
        self.c_c = 4 / (n + 4)
        self.chi = np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self.p_s = self.p_c = np.zeros(n)
        self.C, self.g = np.ones(n), 0

    def tell(self, x, f):
        n, self.g = len(self.mean), self.g + 1
        y = (_ranked(x, f, self.mu) - self.mean) / self.sigma
        y_w = self.w @ y
        self.mean = self.mean + self.sigma * y_w
        scale = np.sqrt(self.c_s * (2 - self.c_s) * self.mu_eff)
        self.p_s = (1 - self.c_s) * self.p_s + scale * y_w / np.sqrt(self.C)
        length = np.linalg.norm(self.p_s)
        self.sigma *= np.exp(self.c_s / self.d_s * (length / self.chi - 1))
        grown = np.sqrt(1 - (1 - self.c_s) ** (2 * self.g))
        h = length / grown < (1.4 + 2 / (n + 1)) * self.chi
        scale = np.sqrt(self.c_c * (2 - self.c_c) * self.mu_eff)
        self.p_c = (1 - self.c_c) * self.p_c + h * scale * y_w
        delta = (1 - h) * self.c_c * (2 - self.c_c)
        keep = 1 + self.c_1 * delta - self.c_1 - self.c_mu
        self.C = keep * self.C + self.c_1 * self.p_c**2 + self.c_mu * self.w @ y**2


class Minimizer:
    """A search of the package `cmaes`, which minimises one candidate after the other."""

    def __init__(self, kind, mean, p, sigma, seed=None):
        mean = np.array(mean, float)
        self.search = getattr(cmaes, kind)(mean=mean, sigma=sigma, population_size=p, seed=seed)
        self.p = p

    def ask(self, rng):
        return np.array([self.search.ask() for _ in range(self.p)])

    def tell(self, x, f):
        self.search.tell([(row.astype(float), -value) for row, value in zip(x, f, strict=True)])


class PyCMA:
    """CMA-ES of the package `cma`."""

    def __init__(self, mean, p, sigma, seed):
        options = {"popsize": p, "seed": seed + 1, "verbose": -9}
        self.search = cma.CMAEvolutionStrategy(list(mean), sigma, options)

    def ask(self, rng):
        return np.array(self.search.ask())

    def tell(self, x, f):
        self.search.tell(list(x), list(-f))


def evaluations_to(reference, function, target, seed, most=2_000):
    """Returns how many evaluations come before a candidate reaches the target; None if none does.

    A generation counts whole, as in `problems.evaluations_to`.
    """
    rng = np.random.default_rng(seed)
    count = 0
    for _ in range(most):
        x = reference.ask(rng)
        f = function(x).numpy()
        count += len(x)
        if f.max() >= target:
            return count
        reference.tell(x, f)
    return None


def follows(optimizer, reference, function, mean, names, generations=3, rtol=1e-4, atol=1e-5):
    """Checks generations against a reference that is told the same populations.

    Args:
      optimizer: The strategy.
      reference: As those above, at the same start.
      function: Fitness of vectors [P, D].
      mean: The start, float32 [D].
      names: Of the strategy's state, and of the reference: attributes, or functions.
      generations: How many.
      rtol: Relative tolerance; the strategy is in float32.
      atol: Absolute tolerance.
    """
    populations, states = told(optimizer, function, mean, generations)
    for x, state in zip(populations, states, strict=True):
        reference.tell(x.astype(float), function(x).numpy().astype(float))
        np.testing.assert_array_equal(state.search.mean, state.params)
        for name, expected in names.items():
            found, expected = _of(state.search, name), _of(reference, expected)
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=str(name))


def _of(thing, name):
    return name(thing) if callable(name) else getattr(thing, name)
