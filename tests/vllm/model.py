"""A small Llama whose output depends on every token of its cache: weights with a deviation of 0.35.

With vLLM's dummy weights the output does not depend on the cache, and any test would pass.
"""

from pathlib import Path

VOCABULARY = 512
SEED = 3


def make(folder: Path) -> Path:
    """Makes it unless it is there."""
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCABULARY,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(SEED)
    made = LlamaForCausalLM(config).to(torch.float32)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.35)
    made.save_pretrained(folder)
    return folder
