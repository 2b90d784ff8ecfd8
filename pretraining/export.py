"""Weights as safetensors, with the names of GPT-2's checkpoints, for other libraries to load.

    .venv/bin/python -m pretraining.export CHECKPOINT FOLDER

writes the weights of a checkpoint, such as training/RUN/checkpoints/step_00000250.pt, into a folder
that `transformers.GPT2LMHeadModel.from_pretrained` loads. A run does the same at its end.
"""

import shutil
from pathlib import Path

import safetensors.torch
import torch

from pretraining import checkpoints
from Utils.base import files
from Utils.base.command_line import Parser
from Utils.base.errors import UserError, exit_on_error
from Utils.base.gpt2_sizes import CONFIGS, VOCABULARY
from Utils.corpus.token_cache import END_OF_TEXT, vocabulary_files

# Weights of shape (in, out) in GPT-2, (out, in) in torch.nn.Linear.
TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def gpt2_weights(state):
    """Return a model's state_dict under GPT-2's names, as float32: {name: contiguous tensor}.

    Rows that pad the vocabulary are cut off. The head is left out if it is tied to the embedding.
    """
    tied = state["lm_head.weight"].equal(state["wte.weight"])
    weights = {}
    for name, tensor in state.items():
        if name in ("lm_head.weight", "wte.weight"):
            tensor = tensor[:VOCABULARY]
        if name.endswith(TRANSPOSED):
            tensor = tensor.t()
        if name == "lm_head.weight" and tied:
            continue
        gpt2_name = name if name == "lm_head.weight" else f"transformer.{name}"
        weights[gpt2_name] = tensor.detach().to("cpu", torch.float32).contiguous()
    return weights


def write(folder, weights, config):
    """Write weights, config.json and the tokenizer's files. Raises UserError.

    weights: as `gpt2_weights` returns them.
    config: the model's GPTConfig.
    """
    described = {
        "written_by": files.MARK,
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_positions": config.block_size,
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "bos_token_id": END_OF_TEXT,
        "eos_token_id": END_OF_TEXT,
        "torch_dtype": "float32",
    }
    files.write_json(folder / "config.json", described)

    with files.atomic_write(folder / "model.safetensors") as file:
        file.write(safetensors.torch.save(weights, metadata={"format": "pt"}))

    for (_, source), name in zip(vocabulary_files(), ("merges.txt", "vocab.json"), strict=True):
        if source:
            with files.atomic_write(folder / name) as target, source.open("rb") as original:
                shutil.copyfileobj(original, target)


def main(argv=None):
    parser = Parser("export", __doc__)
    parser.add_argument("checkpoint", type=Path, help="a file step_*.pt")
    parser.add_argument("folder", type=Path, help="where the model goes")
    args = parser.parse_args(argv)

    described = files.read_json(args.checkpoint.with_suffix(".json"), checkpoints.FACTS)
    if described is None:
        raise UserError(f"{args.checkpoint}: no checkpoint there with its .json beside it")
    checkpoint = checkpoints.Checkpoint(described["step"], args.checkpoint, described)
    state = checkpoints.load(checkpoint)
    files.claim(args.folder, lambda folder: files.is_marked(folder / "config.json"))
    with checkpoints.of_this_program(args.checkpoint):
        weights = gpt2_weights(state["model"])
        config = CONFIGS[described["model"]]
    write(args.folder, weights, config)
    print(args.folder)


if __name__ == "__main__":
    with exit_on_error("export"):
        main()
