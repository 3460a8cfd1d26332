"""Spectral-DP: noise in the frequency domain, of which a share is kept; `assay.methods.gredp` has the shared parts.

Feng, Xu, Wen, Venkitasubramaniam and Ding: "Spectral-DP: Differentially Private Deep Learning through Spectral
Perturbation and Filtering", IEEE S&P 2023, arXiv:2307.13231. We know the method from sections 2.4 and 3.2 of GReDP
(arXiv:2409.11663) and from the authors' public code (cfeng6/Spectral-DP), not from the paper itself.

How we read it. Each of L layers is clipped at c = C/√L, so that all of them together move by C. Noise of scale σC is
added to the Fourier coefficients, and the first ⌈ρn⌉ of n coefficients on each axis are kept, as in the authors' code:
of circulant blocks the real part is taken, and maps of convolutions are inverted by `irfftn`. Each coefficient that is
kept has noise of variance σ²C², so K of N leave (K/N)σ²C², as GReDP (section 3.2) says of Spectral-DP. Claimed ε: the
Rényi accountant at σ. That holds: the filter is post-processing, and L layers move by C.

What the authors' code does otherwise, and what is not built here: it clips gradients that are divided by the batch size
already, draws noise for every record, and keeps the last coefficient of each axis without noise. It draws real and
imaginary parts of ½σ²C² each. For a block's mean only the real part counts, so that has half the variance of ours. For
the other coefficients that stay (ρ at most ½) the two are equal in law. None of this is in the description that we
follow.

`sound` keeps each frequency together with its conjugate, so that nothing is lost of those that stay.
"""

from __future__ import annotations

from assay.methods.gredp import FrequencyDomain

METHOD = FrequencyDomain(
    name="spectral",
    summary="Spectral-DP: noise in the frequency domain, low frequencies kept (Feng et al. 2023)",
    soundness="sound as we read it: layers clipped at C/√L, noise relative to C; with real-valued noise ε = ∞",
    noise_form="hermitian",
    rho=0.5,
    jointly=True,
    one_sided=True,
)
