"""Fits the coefficients of pom/ops/cpu/math.h and prints them with the error they reach.

erf(x / sqrt 2) = x P(x^2) / Q(x^2) on |x| <= 5.6, and 2^r = 1 + r R(r) on |r| <= 1/2, by least squares with
Lawson's weights (which tend to the best fit in the largest error). Needs numpy and mpmath.
"""

import mpmath
import numpy as np


def fit_erf(
    np_deg: int, nq_deg: int, limit: float = 5.6, points: int = 4000
) -> tuple[np.ndarray, np.ndarray, float]:
    x = limit * (1 - np.cos(np.linspace(0.001, np.pi / 2, points)))
    truth = np.array([float(mpmath.erf(mpmath.mpf(v) / mpmath.sqrt(2))) for v in x])
    s = (x / limit) ** 2  # scaled, for conditioning
    weight = np.ones_like(x)
    q_old = np.ones_like(x)
    best = None
    for _ in range(400):
        # x P(s) - truth (Q(s) - 1) = truth, divided by the previous denominator
        scale = np.sqrt(weight) / q_old
        columns = [x * s**i for i in range(np_deg + 1)] + [-truth * s**i for i in range(1, nq_deg + 1)]
        solution, *_ = np.linalg.lstsq(np.stack(columns, 1) * scale[:, None], truth * scale, rcond=None)
        p, q = solution[: np_deg + 1], np.concatenate([[1.0], solution[np_deg + 1 :]])
        q_old = sum(q[i] * s**i for i in range(nq_deg + 1))
        error = np.abs(x * sum(p[i] * s**i for i in range(np_deg + 1)) / q_old - truth)
        if best is None or error.max() < best[2]:
            best = (p.copy(), q.copy(), error.max())
        weight *= error + 1e-13
        weight /= weight.sum()
    p, q, worst = best
    unscale = np.array([limit ** (-2 * i) for i in range(max(np_deg, nq_deg) + 1)])
    return p * unscale[: np_deg + 1], q * unscale[: nq_deg + 1], worst


def fit_exp2(degree: int, points: int = 4000) -> tuple[np.ndarray, float]:
    r = np.cos(np.linspace(0, np.pi, points)) * 0.5
    truth = 2.0**r
    columns = np.stack([r**i / truth for i in range(1, degree + 1)], 1)
    target = (truth - 1) / truth
    weight = np.ones_like(r)
    best = None
    for _ in range(300):
        c, *_ = np.linalg.lstsq(columns * np.sqrt(weight)[:, None], target * np.sqrt(weight), rcond=None)
        error = np.abs(columns @ c - target)
        if best is None or error.max() < best[1]:
            best = (c, error.max())
        weight *= error + 1e-15
        weight /= weight.sum()
    return best


if __name__ == "__main__":
    for degree in (5, 6):
        c, worst = fit_exp2(degree)
        print("2^r, degree", degree, "fit", worst)
        print("  R", ", ".join(f"{v:.9e}f" for v in c))
    for degrees in [(4, 4), (5, 4), (5, 5), (6, 4), (6, 5)]:
        p, q, worst = fit_erf(*degrees)
        x32 = np.linspace(-8, 8, 400001).astype(np.float32)
        c = np.clip(x32, np.float32(-5.6), np.float32(5.6))
        u = c * c
        num = np.zeros_like(u)
        den = np.zeros_like(u)
        for a in p[::-1].astype(np.float32):
            num = num * u + a
        for a in q[::-1].astype(np.float32):
            den = den * u + a
        erf32 = c * num / den
        truth = np.array([float(mpmath.erf(float(v) / mpmath.sqrt(2))) for v in x32[::40]])
        print(degrees, "fit", worst, "in fp32", np.abs(erf32[::40] - truth).max())
        print("  P", ", ".join(f"{v:.9e}f" for v in p))
        print("  Q", ", ".join(f"{v:.9e}f" for v in q))
