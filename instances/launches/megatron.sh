#!/bin/bash
# Llama 3.1 8B with Megatron-LM on two nodes of eight GPUs, as a script of one's own may look.
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=${SLURM_NNODES:-2}
TP=2
PP=4
LAYERS_IN_CHUNK=4
CHECKPOINTS=${1:-"checkpoints/llama-8b"}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --node_rank ${NODE_RANK:-0}
    --master_addr ${MASTER_ADDR:-localhost}
    --master_port ${MASTER_PORT:-6000}
)

MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length 2048
    --max-position-embeddings 8192
    --position-embedding-type rope
    --rotary-base 500000
    --normalization RMSNorm
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --attention-backend flash
)

TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size $((4 * GPUS_PER_NODE * NUM_NODES))
    --train-iters 100000
    --lr 3e-4
    --lr-decay-style cosine
    --lr-warmup-iters 2000  # 2 % \
    --clip-grad 1.0
    --adam-beta2 0.95
    --weight-decay 0.1
    --bf16
    --manual-gc
)

PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size $PP
    --num-layers-per-virtual-pipeline-stage $LAYERS_IN_CHUNK
    --sequence-parallel
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
)

DATA_ARGS=("--split '99,1,0'" "--num-workers 2")
if [ -z "$DATA" ]; then
    DATA_ARGS+=("--mock-data" "--tokenizer-type NullTokenizer" "--vocab-size 128256")
else
    DATA_ARGS+=("--data-path $DATA" "--tokenizer-type HuggingFaceTokenizer")
fi

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} ${TRAINING_ARGS[@]} ${PARALLEL_ARGS[@]} ${DATA_ARGS[@]} \
    --save "$CHECKPOINTS" --save-interval 1000 --log-interval 10 2>&1 | tee train.log
