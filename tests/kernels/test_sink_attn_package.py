"""sink_attn as users get it: a wheel by itself, and a kernel as Hugging Face's kernels loads it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch

import sink_attn
from tools import hub_kernel
from tools.sink_attn_resources import SHARED_BYTES

ROOT = Path(__file__).parents[2]
MODULES = {f"sink_attn/{path.name}" for path in (ROOT / "sink_attn").glob("*.py")}
TRY = """
import sys
import torch, sink_attn
assert "transformers" not in sys.modules
q = torch.randn(1, 2, 20, 16, requires_grad=True)
sink_attn.attention(q, q, q, window_size=5).sum().backward()
assert q.grad.norm() > 0
print(sink_attn.__file__)
"""
REGISTER = """
import sink_attn
from transformers import AttentionInterface
sink_attn.register()
assert AttentionInterface()["sink_attn"].__module__ == "sink_attn.transformers_attention"
"""


def _run(*command, cwd, **environment) -> str:
    done = subprocess.run([sys.executable, *map(str, command)], cwd=cwd, capture_output=True,
                          text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """The folder of a source distribution, and of the wheel that is made of it."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "out"))
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copyfile(ROOT / name, source / name)
    shutil.copytree(ROOT / "sink_attn", source / "sink_attn",
                    ignore=shutil.ignore_patterns("__pycache__"))
    _run("-c", "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])",
         out, cwd=source)
    (packed,) = out.glob("sink_attn-*.tar.gz")
    _run("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--wheel-dir", out, packed, cwd=out)
    return out


def test_the_wheel_holds_the_package_and_asks_for_torch_and_triton_alone(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with ZipFile(wheel) as file:
        names = set(file.namelist())
        (about,) = (name for name in names if name.endswith("/METADATA"))
        metadata = message_from_bytes(file.read(about))
    assert {name for name in names if ".dist-info/" not in name} == MODULES
    needed = [row for row in metadata.get_all("Requires-Dist") if "extra ==" not in row]
    assert sorted(row.partition(">")[0] for row in needed) == ["torch", "triton"]
    with tarfile.open(next(built.glob("*.tar.gz"))) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    assert MODULES | {"pyproject.toml", "LICENSE", "sink_attn/README.md"} <= packed


@pytest.mark.interpreter
def test_the_wheel_is_imported_and_registered_without_this_repository(built, tmp_path):
    site = tmp_path / "site"
    _run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site,
         next(built.glob("*.whl")), cwd=tmp_path)
    environment = dict(PYTHONPATH=str(site), TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    where = _run("-c", TRY, cwd=tmp_path, **environment).strip()
    assert Path(where) == site / "sink_attn" / "__init__.py"
    pytest.importorskip("transformers")
    _run("-c", REGISTER, cwd=tmp_path, **environment)


# ------------------------------------------------------------ Hugging Face's kernels
@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """The package of the built kernel, imported as kernels does: by path, under the build's id."""
    build = hub_kernel.write(tmp_path_factory.mktemp("kernel") / "new", "someone")
    name = json.loads((build / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, build / "__init__.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_kernel_repository_has_what_kernels_documents(kernel):
    build = Path(kernel.__file__).parent
    folder = build.parents[1]
    assert build == folder / "build" / "torch-cuda"
    about = json.loads((build / "metadata.json").read_text())
    files = {path.name for path in build.glob("*.py")}
    assert set(about["digest"]["files"]) == files == {name.partition("/")[2] for name in MODULES}
    assert {path.name for path in (folder / "torch-ext/sink_attn").iterdir()} == files
    told = tomllib.loads((folder / "build.toml").read_text())
    assert told["general"]["name"] == about["name"] == "sink-attn"
    assert told["general"]["version"] == about["version"]
    archs = told["torch-noarch"]["cuda-capabilities"]
    assert archs == about["backend"]["archs"]
    assert [int(x.replace(".", "")) for x in archs] == sorted(SHARED_BYTES)


def test_a_folder_that_holds_something_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine\n")
    with pytest.raises(ValueError, match="want a new or an empty folder; got"):
        hub_kernel.write(tmp_path, "someone")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_help_of_hub_kernel_writes_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        hub_kernel.main(["--help"])
    assert "folder" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_every_module_of_the_kernel_is_its_own(kernel):
    name = kernel.__name__
    assert kernel.attention is not sink_attn.attention
    assert kernel.attention.__module__ == f"{name}.entry"
    assert hasattr(getattr(torch.ops, name), "attention")


@pytest.mark.interpreter
def test_the_kernel_computes_and_differentiates_packed_sequences(kernel, device):
    torch.manual_seed(0)
    q, k, v = (torch.randn(30, H, 16, device=device, requires_grad=True) for H in (4, 2, 2))
    borders = torch.tensor([0, 12, 30], dtype=torch.int32, device=device)
    x = torch.randn(4, device=device, requires_grad=True)
    results = []
    for attend in (
        lambda: kernel.flash_attn_varlen_func(
            q, k, v, borders, borders, 18, 18, softmax_scale=0.3, causal=True,
            window_size=(6, 6), s_aux=x),
        lambda: torch.cat([
            kernel.flash_attn_func(*(t[None, rows] for t in (q, k, v)), softmax_scale=0.3,
                                   causal=True, window_size=(6, 0), s_aux=x)[0]
            for rows in (slice(0, 12), slice(12, 30))]),
        lambda: sink_attn.attention_varlen(
            q, k, v, borders, borders, 18, window_size=7, scale=0.3, sink_logits=x),
    ):
        o = attend()
        results.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v, x))])
    for tensors in zip(*results, strict=True):
        for other in tensors[:2]:
            torch.testing.assert_close(other, tensors[2])


@pytest.mark.interpreter
def test_transformers_computes_with_the_kernel_as_with_one_of_its_hub(kernel, device, monkeypatch):
    transformers = pytest.importorskip("transformers")
    from transformers.integrations import hub_kernels

    asked = []
    monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True, raising=False)
    monkeypatch.setattr(hub_kernels, "_kernels_available", True, raising=False)  # of 5.4
    monkeypatch.setattr(
        hub_kernels, "get_kernel", lambda name, **options: asked.append(name) or kernel)
    torch.manual_seed(0)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(
        vocab_size=64, hidden_size=32, intermediate_size=16, num_hidden_layers=2,
        num_local_experts=2, num_experts_per_tok=2, head_dim=16, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=7, initializer_range=0.3)).to(device)
    ids = torch.randint(64, (1, 30), device=device)
    positions = torch.cat([torch.arange(12), torch.arange(18)])[None].to(device)
    model.set_attn_implementation("eager")
    alone = torch.cat([model(part).logits for part in ids.split([12, 18], dim=1)], dim=1)
    whole = model(ids).logits
    model.set_attn_implementation("someone/sink-attn")
    limit = dict(rtol=0, atol=1e-2 if device == "cuda" else 1e-4)
    torch.testing.assert_close(model(ids).logits, whole, **limit)
    torch.testing.assert_close(model(ids, position_ids=positions).logits, alone, **limit)
    assert set(asked) == {"someone/sink-attn"}


@pytest.mark.parametrize(("options", "said"), [
    (dict(dropout_p=0.1), "want no dropout; got dropout_p=0.1"),
    (dict(window_size=(4, 4)), r"want causal=True with a window; got causal=False, \(4, 4\)"),
    (dict(window_size=(-1, 0)), "want causal=True with a window"),
    (dict(softcap=30.0), "want softcap=0.0; got 30.0"),
    (dict(alibi_slopes=torch.zeros(1)), "want alibi_slopes=None; got a Tensor"),
    (dict(return_attn_probs=True), "want return_attn_probs=False; got True"),
    (dict(attention_chunk=64), "want attention_chunk=0; got 64"),
    (dict(learnable_sink=torch.zeros(1)), "want learnable_sink=None; got a Tensor"),
    (dict(softmax_scael=0.1), "want arguments of FlashAttention; got softmax_scael"),
])
def test_what_flash_attention_has_and_the_kernel_lacks_is_refused(options, said):
    q, borders = torch.zeros(1, 4, 1, 16), torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises((ValueError, TypeError), match=said):
        sink_attn.flash_attn_func(q, q, q, **options)
    with pytest.raises((ValueError, TypeError), match=said):
        sink_attn.flash_attn_varlen_func(*[q[0]] * 3, borders, borders, 4, 4, **options)


@pytest.mark.interpreter
@pytest.mark.parametrize("options", [
    # FlashAttention 2, 3 and 4 at their defaults, and how they may compute
    dict(softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False),
    dict(qv=None, q_descale=None, k_descale=None, v_descale=None, attention_chunk=0, softcap=0,
         num_splits=4, pack_gqa=True, sm_margin=8),
    dict(window_size=(None, None), learnable_sink=None, softcap=None, num_splits=1, pack_gqa=None,
         mask_mod=None, score_mod=None, return_lse=False),
], ids=["2", "3", "4"])
def test_arguments_of_flash_attention_that_ask_for_nothing_change_nothing(options, device):
    q = torch.randn(1, 20, 2, 16, device=device)
    want = sink_attn.flash_attn_func(q, q, q, causal=True)
    assert torch.equal(sink_attn.flash_attn_func(q, q, q, causal=True, **options), want)
    borders = torch.tensor([0, 20], dtype=torch.int32, device=device)
    rows = *[q[0]] * 3, borders, borders, 20, 20
    want = sink_attn.flash_attn_varlen_func(*rows, causal=True)
    options = options | dict(block_table=None, seqused_q=None, seqused_k=None, page_table=None)
    assert torch.equal(sink_attn.flash_attn_varlen_func(*rows, causal=True, **options), want)


@pytest.mark.interpreter
def test_flash_attention_s_functions_return_lse_in_its_layout(device):
    q, x = torch.randn(2, 1, 20, 16, device=device), torch.randn(2, device=device)
    q = q.transpose(0, 1)  # (1, 2, 20, 16)
    o, lse = sink_attn.attention(q, q, q, sink_logits=x, return_lse=True)
    rows, options = q.transpose(1, 2), dict(causal=True, s_aux=x, return_lse=True)
    got = sink_attn.flash_attn_func(rows, rows, rows, **options)
    assert torch.equal(got[0].transpose(1, 2), o) and torch.equal(got[1], lse)
    borders = torch.tensor([0, 20], dtype=torch.int32, device=device)
    got = sink_attn.flash_attn_varlen_func(*[rows[0]] * 3, borders, borders, 20, 20, **options)
    limit = dict(rtol=0, atol=1e-2 if device == "cuda" else 1e-5)
    torch.testing.assert_close(got[0].transpose(0, 1), o[0], **limit)
    torch.testing.assert_close(got[1], lse[0], **limit)
