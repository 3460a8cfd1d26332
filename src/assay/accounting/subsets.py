"""Rényi divergences of Gaussian noise on a random subset of fixed size, where a record is replaced.

One step draws b of N records uniformly, q = b/N, and adds noise σC to the sum of vectors of norm at most C.

**Claim.** For whole α ≥ 2 and v = 4/σ², whatever the records are,

    E_Q[(P/Q)^α] ≤ 1 + Σ_(j=2..α) binom(α, j) q^j M_j,   M_j = e^(j(j-1)v/2) - 1 for even j, e^(j(j-1)v/2) for odd j,

and M_j may be replaced by √(M_(j-1) M_(j+1)) for odd j. Neighbours may be exchanged, so it bounds both directions.

**Proof.** Let x be the record that x' replaces.

1. Draw b - 1 of the other records and one further record y among the rest; then let x take the place of y with
   probability q. That is a uniform subset. Reveal all but the last coin: divergences are jointly convex in the sense
   that E_Q[(P/Q)^α] of a mixture is at most the average. So P = (1-q)A + qB and Q = (1-q)A + qB' suffice, A, B and B'
   being N(y, σ²I), N(x, σ²I) and N(x', σ²I) up to one shift, with y, x and x' in a ball of radius 1 (C = 1).
2. P = Q + q(B - B'), so E_Q[(P/Q)^α] = Σ_j binom(α, j) q^j ∫ (B-B')^j Q^(1-j). The summand of j = 0 is 1 and that of
   j = 1 is 0. For odd j take the positive part of B - B'. Then the integrand is convex in (B-B', Q) together, as the
   perspective of a power, and Q is a mixture: ∫ (B-B')^j Q^(1-j) is at most the larger of the same with A and with B'
   in place of Q.
3. Odd j: with X = B/A and X' = B'/A, both positive, (X-X')₊^j ≤ X^j, and E_A[X^j] = e^(j(j-1)|b|²/2) for
   b = (x-y)/σ, |b|² ≤ v. The same holds with B' in place of A. The other form is the inequality of Cauchy and Schwarz.
4. Even j = 2m: |X-X'|^j ≤ (X^m - X'^m)². With b' = (x'-y)/σ, s = |b|², t = |b'|², c = ⟨b, b'⟩ and κ = 2m² - m,

       E_A[(X^m - X'^m)²] = e^(κs) + e^(κt) - 2 e^((m²-m)(s+t)/2 + m²c) ≤ e^(κs) + e^(κt) - 2 e^(κc),

   because (s+t)/2 ≥ c. By (5), applied to each power of κ in the series of the right side, that is at most
   e^(κv) - 1, and κ = j(j-1)/2. With B' in place of A: E[(R^m - 1)²] ≤ E[R^j] - 1, since E[R^m] ≥ 1.
5. s^n + t^n - 2c^n ≤ v^n for n ≥ 1, for three points 0, b, b' in a ball of radius ρ = 1/σ, v = 4ρ². Let s ≥ t.
   - c ≤ 0: s^n + t^n + 2|c|^n ≤ (s + t + 2|c|)^n = |b-b'|^(2n) ≤ v^n.
   - c ≥ t: s^n + t^n - 2c^n ≤ s^n ≤ v^n.
   - 0 < c < t: the triangle is acute, so its circle has a radius r ≤ ρ, and b and b' lie on both sides of the diameter
     through 0, at angles β and γ from it with β + γ < π/2. Put A = tan²β, B = tan²γ, τ = √(AB) < 1. Then s = 4r²/(1+A),
     t = 4r²/(1+B) and c = 4r²(1-τ)/((1+A)(1+B)). Multiplied by ((1+A)(1+B)/4r²)^n, the claim reads
     ((1+A)^n - 1)((1+B)^n - 1) ≥ 1 - 2(1-τ)^n. By Cauchy and Schwarz, the left side is at least (w-1)² with
     w = (1+τ)^n. It remains to show w² - 2w + 2(1-τ)^n ≥ 0. That is clear for w ≥ 2. For w < 2 it follows from
     (1-τ)^n ≥ 1 - nτ ≥ 2 - w ≥ w(2-w)/2. ∎

Between whole orders, log E_Q[(P/Q)^α] is convex in α, so the chord bounds it; at α = 1 it is 0.

Why this is needed: the profile of a single step is bounded as tightly as possible by `losses.WithoutReplacement`. For
each ε ≥ 0 some data sets attain it, and for ε < 0 the same data sets exchanged. No data sets attain both at once, so
composing that profile overstates ε, the more the less noise there is. Divergences do not have this gap. The lemma of
step 2 improves on the constants of Wang, Balle and Kasiviswanathan ("Subsampled Rényi Differential Privacy and
Analytical Moments Accountant", AISTATS 2019, arXiv:1808.00087), which hold for any noise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

HIGHEST = 256  # order
_UP = 1e-10  # relative to log-moments: more than rounding takes away


def divergences(rate: float, multiplier: float, orders: Sequence[float]) -> NDArray[np.float64]:
    """Upper bounds on the Rényi divergences of one step, in both directions.

    Args:
        rate: q.
        multiplier: σ/2: the noise relative to how far replacing a record of the subset moves the sum.
        orders: Numbers above 1.

    Returns:
        One number for each order; `math.inf` above the highest.

    >>> bool(divergences(0.01, 1.0, [2.0])[0] < 0.01**2 * math.expm1(1.0))
    True
    """
    moments = _log_moments(rate, multiplier)
    wanted = np.asarray(orders, dtype=np.float64)
    found = np.interp(wanted, np.arange(1, HIGHEST + 1), moments) * (1 + _UP) / (wanted - 1)
    return np.where(wanted <= HIGHEST, found, math.inf)


@functools.lru_cache(maxsize=256)
def _log_moments(rate: float, multiplier: float) -> NDArray[np.float64]:
    """log E_Q[(P/Q)^α] for α = 1 … HIGHEST, at most."""
    v = multiplier**-2
    j = np.arange(2, HIGHEST + 2, dtype=np.float64)
    exponent = j * (j - 1) * v / 2
    with np.errstate(over="ignore"):
        even = exponent + np.log(-np.expm1(-exponent))
    odd = np.minimum(exponent[1:-1], (even[:-2] + even[2:]) / 2)
    logs = np.where(j[1:-1] % 2 == 0, even[1:-1], odd)
    log_m = np.concatenate([even[:1], logs])  # of j = 2 … HIGHEST
    found = [0.0]
    for order in range(2, HIGHEST + 1):
        k = j[: order - 1]
        choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        rest = float(logsumexp(choose + k * math.log(rate) + log_m[: order - 1]))
        found.append(float(np.logaddexp(0.0, rest)))
    return np.array(found)
