"""Spectral-DP (Feng et al. 2023, as section 2.4 of the GReDP paper describes it): `assay.methods.gredp` states the guarantee.

Noise of scale σc is added to the Fourier coefficients of each layer's clipped gradient and a part ρ of the frequencies, the
lowest, is kept: noise of variance (K/N)σ²c² in the paper's words, which is what Hermitian noise gives. The filter keeps a
frequency together with its conjugate, so that what comes back is real.
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
