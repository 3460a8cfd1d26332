"""Spectral-DP, as section 2.4 of GReDP (arXiv:2409.11663) describes it; `assay.methods.gredp` states the guarantee.

Feng, Xu, Wen, Venkitasubramaniam and Ding: "Spectral-DP: Differentially Private Deep Learning through Spectral
Perturbation and Filtering", IEEE S&P 2023, arXiv:2307.13231.

It adds noise of scale σc to the Fourier coefficients of each layer's clipped gradient and keeps the lowest share ρ of
the frequencies. In the paper's words the noise has variance (K/N)σ²c², which is what Hermitian noise gives. The filter
keeps a frequency together with its conjugate, so that the result is real.
"""

from __future__ import annotations

from assay.methods.gredp import FrequencyDomain

METHOD = FrequencyDomain(
    name="spectral",
    summary="Spectral-DP: noise in the frequency domain, low frequencies kept (Feng et al. 2023)",
    soundness="not sound: L layers charged as one (verified multiplier σ/√L); with real-valued noise ε = ∞",
    noise_form="hermitian",
    rho=0.5,
)
