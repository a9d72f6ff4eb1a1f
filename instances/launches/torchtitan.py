"""Llama 3.1 8B with torchtitan 0.3 on 16 GPUs, as a registry of one's own may look."""

from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer

GPUS, RANKS, TENSOR = 16, 4, 2


def llama3_8b() -> Trainer.Config:
    """Return what all of them begin with: replicas whose state is shared."""
    return Trainer.Config(
        hf_assets_path="./assets/hf/Llama-3.1-8B",
        model_spec=model_registry("8B"),
        optimizer=default_adamw(lr=3e-4),
        training=TrainingConfig(local_batch_size=1, seq_len=2048, steps=1000),
        checkpoint=CheckpointManager.Config(interval=500),
        activation_checkpoint=FullAC.Config(),
    )


def llama3_8b_pipeline() -> Trainer.Config:
    """Return a pipeline of four ranks, with two stages on each."""
    config = llama3_8b()
    config.parallelism = ParallelismConfig(
        pipeline_parallel_degree=RANKS,
        pipeline_parallel_schedule="Interleaved1F1B",
        tensor_parallel_degree=TENSOR,
    )
    config.training.local_batch_size = 32
    config.activation_checkpoint = None
    return config
