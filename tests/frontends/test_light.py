"""The networks of the demo: seeded, valid, and with outputs that tell."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from fusion_search.frontends.light import light_names, seeded_light


def test_light_networks_are_seeded() -> None:
    first, same, other = seeded_light("squeezenet"), seeded_light("squeezenet"), seeded_light("squeezenet", seed=1)
    assert first.SerializeToString(deterministic=True) == same.SerializeToString(deterministic=True)
    assert first.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True)
    onnx.checker.check_model(first, full_check=True)
    with pytest.raises(ValueError, match="there are: bvlc_alexnet"):
        seeded_light("no-such-network")


@pytest.mark.parametrize("name", ["densenet121", "shufflenet", "squeezenet"])
def test_light_networks_have_one_input_and_telling_outputs(name: str) -> None:
    import onnxruntime

    assert name in light_names()
    session = onnxruntime.InferenceSession(seeded_light(name).SerializeToString(), providers=["CPUExecutionProvider"])
    (source,) = session.get_inputs()
    (scores,) = session.run(None, {source.name: np.random.default_rng(0).standard_normal(source.shape).astype(np.float32)})
    assert np.isfinite(scores).all()
    assert np.unique(scores).size > 500
