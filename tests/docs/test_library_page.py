"""The examples of docs/library.md run, one after the other, on a CPU."""

import re
import runpy
from pathlib import Path

import pytest
from conftest import ROOT


def test_its_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=256, **sizes, **heads)
    names = {"folder": "own", "llama_folder": "llama", "saved": "saved"}
    given = {name: tmp_path / each for name, each in names.items()}
    transformers.LlamaForCausalLM(config).save_pretrained(given["llama_folder"])
    page = (ROOT / "docs/library.md").read_text(encoding="utf-8")
    script = tmp_path / "examples.py"
    script.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = runpy.run_path(str(script), init_globals=given)
    assert found["logits"].shape == (2, 32, 256) and found["y"].shape == (2, 4, 32, 16)
    assert len(found["ids"]) == 20 and found["llama"].model.layers[0].self_attn.lam.requires_grad
