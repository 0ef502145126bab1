"""A small robust fit: positive constants, errors as logarithms, a loss that forgives outliers."""

import numpy as np

SCALE = 0.15  # log errors beyond this count less and less
STEPS = 40


def fit(predict, start: np.ndarray, measured: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The constants that minimise sum of weights * soft-L1(log(predict(constants) / measured)).

    Gauss-Newton in the logarithms of the constants, damped, reweighted at each step.
    """
    x, damping = np.log(start), 1e-3
    residual = lambda x: np.log(predict(np.exp(x)) / measured)  # noqa: E731
    loss = lambda r: (weights * (np.sqrt(1 + (r / SCALE) ** 2) - 1)).sum()  # noqa: E731
    r = residual(x)
    for _ in range(STEPS):
        slope = np.stack([(residual(x + step) - r) / 1e-5 for step in 1e-5 * np.eye(len(x))], axis=1)
        w = weights / np.sqrt(1 + (r / SCALE) ** 2)
        normal, pull = slope.T @ (w[:, None] * slope), slope.T @ (w * r)
        while True:
            new = x - np.clip(np.linalg.solve(normal + damping * np.diag(np.diag(normal) + 1e-12), pull), -1, 1)
            better = residual(new)
            if loss(better) <= loss(r) or damping > 1e6:
                break
            damping *= 10
        moved, x, r, damping = np.abs(new - x).max(), new, better, max(damping / 10, 1e-9)
        if moved < 1e-6:
            break
    return np.exp(x)


def cell_weights(cells: list) -> np.ndarray:
    """Each row 1 / sqrt(rows of its cell): a large sweep does not decide alone."""
    sizes = {cell: cells.count(cell) for cell in set(cells)}
    return np.array([sizes[cell] ** -0.5 for cell in cells])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> float:
    """The value below which a share q of the weight lies."""
    order = np.argsort(values)
    share = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(q * weights.sum(), share, values[order]))
