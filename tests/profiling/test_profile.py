"""Latency profiles: fits, predictions, knees, files."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teola_plugin.errors import ProfileError
from teola_plugin.profile import (
    PAPER,
    PAPER_LLM,
    LlmProfile,
    Profile,
    Sample,
    fit,
    load,
    save,
)
from tests.support.tiny_profiles import TINY_CPU, TINY_CPU_LLM

SECONDS = st.floats(1e-4, 1.0)
SIZES = (1, 2, 5, 16, 40)


@given(base_s=SECONDS, item_s=SECONDS, token_s=SECONDS)
@settings(deadline=None)
def test_fit_recovers_an_affine_engine(base_s: float, item_s: float, token_s: float) -> None:
    truth = Profile.affine(base_s, item_s, token_s)
    samples = [Sample(n, n * length, truth.predict_s(n, n * length)) for n in SIZES for length in (1, 7, 300)]
    found = fit(samples)
    for n, tokens in [(1, 10), (3, 30), (40, 400)]:
        assert found.predict_s(n, tokens) == pytest.approx(truth.predict_s(n, tokens), rel=1e-3)


def test_fit_bends_at_its_knots() -> None:
    truth = Profile(points=((0, 0.010), (8, 0.012), (16, 0.040)))
    samples = [Sample(n, 0, truth.predict_s(n)) for n in (1, 4, 8, 10, 16, 24)]
    found = fit(samples, knots=(8,))
    assert [found.predict_s(n) for n in (2, 8, 12, 24)] == pytest.approx([truth.predict_s(n) for n in (2, 8, 12, 24)])
    assert found.knee_items == truth.knee_items == 8


@given(
    st.lists(
        st.builds(Sample, st.integers(1, 64), st.integers(0, 4096), st.floats(1e-4, 10)),
        min_size=1,
        max_size=12,
    )
)
@settings(deadline=None)
def test_a_fit_to_noise_still_never_falls(samples: list[Sample]) -> None:
    found = fit(samples, knots=(4, 16))
    seconds = [found.predict_s(n, 100) for n in range(1, 80)]
    assert seconds == sorted(seconds)
    assert found.predict_s(4, 200) >= found.predict_s(4, 100) >= 0
    assert 1 <= found.knee_items <= found.max_items


@pytest.mark.parametrize(
    ("profile", "knee"),
    [
        (Profile(((0, 1.0),)), 58),  # a batch costs the same whatever its size: 90 % of 64
        (Profile(((0, 1.0),), knee_share=1.0), 64),
        (Profile(((0, 1.0),), max_items=10), 9),
        (Profile.affine(0.0, 0.01), 1),  # nothing is shared
        (Profile(((0, 0.0),)), 1),  # nothing is known
        (Profile.affine(1.0, 0.01), 55),
        (Profile(((0, 0.01), (8, 0.01), (9, 1.0))), 8),
        (PAPER["embedding"], 14),
    ],
)
def test_the_knee_is_the_smallest_batch_near_the_best_throughput(profile: Profile, knee: int) -> None:
    assert profile.knee_items == knee


def test_the_knee_falls_with_the_length_of_items() -> None:
    knees = [TINY_CPU["embedding"].knee(tokens) for tokens in (4, 16, 64, 256)]
    assert knees == sorted(knees, reverse=True)
    assert knees[-1] < 4 < 16 < knees[0]


def test_points_are_joined_and_the_last_line_goes_on() -> None:
    step = TINY_CPU_LLM["tiny"].step
    assert [step.predict_s(n) for n in (0, 1, 4, 10, 32, 48)] == pytest.approx([0, 0.007, 0.010, 0.0135, 0.026, 0.035])


def test_items_have_their_usual_length_unless_told() -> None:
    profile = Profile.affine(1.0, token_s=0.1, item_tokens=10)
    assert [profile.predict_s(2), profile.predict_s(2, 20), profile.predict_s(2, 0)] == pytest.approx([3, 3, 1])


def test_published_points_come_out() -> None:
    """The numbers that each constant was taken from."""
    embedding, minilm, llm = PAPER["embedding"], TINY_CPU["embedding"], PAPER_LLM["7b"]
    assert 48 / 4 * embedding.predict_s(4) == pytest.approx(1.8)
    assert 48 / 16 * embedding.predict_s(16) == pytest.approx(1.35)
    assert PAPER_LLM["figure7"].prefill_s(512) == pytest.approx(0.5)
    assert PAPER_LLM["figure7"].prefill_s(1024, items=2) == pytest.approx(0.8)
    assert [1 / minilm.predict_s(1, 16), 16 / minilm.predict_s(16, 256)] == pytest.approx([57, 238], rel=0.05)
    assert 13 <= 4 / minilm.predict_s(4, 1024) <= 20
    assert TINY_CPU_LLM["tiny"].prefill_s(659) == pytest.approx(0.2, rel=0.05)
    assert (llm.step_s(1), llm.step_s(32)) == pytest.approx((0.027, 0.030))


def test_a_cached_prefix_costs_less_than_its_prefill_and_not_nothing() -> None:
    llm = PAPER_LLM["7b"]
    assert llm.prefill_s(100) < llm.prefill_s(100, cached_tokens=1000) < llm.prefill_s(1100)
    assert llm.prefill_s(100, cached_tokens=1000) - llm.prefill_s(100) == pytest.approx(100 * 1000 * 1.4e-8)


def test_requests_take_their_prefill_and_their_answers() -> None:
    llm = PAPER_LLM["7b"]
    assert llm.predict_s(2, 200) == pytest.approx(llm.prefill_s(200, items=2) + 64 * llm.step_s(2))


def test_where_items_and_tokens_tell_the_same_it_goes_by_items() -> None:
    found = fit([Sample(n, 10 * n, 0.05 + 0.025 * n) for n in (1, 4, 16)])
    assert found.token_s == 0
    assert found.predict_s(8) == pytest.approx(0.25)


def test_leaving_the_measured_range_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    profile = fit([Sample(2, 20, 0.1), Sample(8, 80, 0.2)], source="an engine of this test")
    with caplog.at_level(logging.WARNING, logger="teola_plugin"):
        profile.predict_s(2, 20), profile.predict_s(8), profile.knee_items
        assert not caplog.records
        profile.predict_s(9), profile.predict_s(1), profile.predict_s(4, 500), profile.predict_s(4, 600)
    assert [r.getMessage() for r in caplog.records] == [
        "an engine of this test was measured for 2 to 8 items; predictions beyond are guesses",
        "an engine of this test was measured for 20 to 80 tokens; predictions beyond are guesses",
    ]


# --- files --------------------------------------------------------------------------------------------------


def test_profiles_survive_a_file(tmp_path: Path) -> None:
    profiles: dict[str, Profile | LlmProfile] = {**PAPER, **PAPER_LLM, **TINY_CPU, **TINY_CPU_LLM}
    profiles["measured"] = fit([Sample(2, 20, 0.1), Sample(8, 90, 0.2)], knots=(4,))
    save(tmp_path / "p.json", profiles)
    assert load(tmp_path / "p.json") == profiles


POINTS = [[1, 0.5]]
LLM = {"prefill": {"points": POINTS}, "step": {"points": POINTS}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "embedder.points"),
        ({"points": []}, "embedder.points"),
        ({"points": [[1, "fast"]]}, r"embedder.points.0.1: .*'fast'"),
        ({"points": [[2, 0.5], [1, 0.6]]}, "embedder.points: expected ascending"),
        ({"points": [[1, 0.5], [2, 0.4]]}, "embedder.points: expected seconds that never fall"),
        ({"points": [[-1, 0.5]]}, "embedder.points"),
        ({"points": [[1, -0.5]]}, "embedder.points"),
        ({"points": [[1, float("nan")]]}, "embedder.points"),
        ({"points": [[1, float("inf")]]}, "embedder.points: expected finite"),
        ({"points": POINTS, "token_s": -1}, "embedder.token_s"),
        ({"points": POINTS, "item_tokens": -1}, "embedder.item_tokens"),
        ({"points": POINTS, "max_items": 0}, "embedder.max_items"),
        ({"points": POINTS, "knee_share": 1.1}, "embedder.knee_share"),
        ({"points": POINTS, "knee": 3}, "embedder.knee"),
        (LLM | {"step": {"points": POINTS, "bace": 1}}, "embedder.step.bace"),
        (LLM | {"prefill": {}}, "embedder.prefill.points"),
        (LLM | {"output_tokens": None}, "embedder.output_tokens"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, fields: dict[str, Any], named: str) -> None:
    (tmp_path / "p.json").write_text(json.dumps({"embedder": fields}))
    with pytest.raises(ProfileError, match=named):
        load(tmp_path / "p.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"embedder": 3}'])
def test_a_file_that_holds_no_profiles_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ProfileError, match=r"p\.json"):
        load(tmp_path / "p.json")


@pytest.mark.parametrize(
    "sample", [Sample(0, 1, 1.0), Sample(1, -1, 1.0), Sample(1, 1, 0.0), Sample(1, 1, float("nan"))]
)
def test_a_sample_that_cannot_be_is_named(sample: Sample) -> None:
    with pytest.raises(ProfileError, match=r"samples\[1\]"):
        fit([Sample(1, 1, 1.0), sample])
