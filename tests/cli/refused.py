"""What each command refuses.

Each row is a command line and what the error says of it, joined by ``=>``.
"""

from __future__ import annotations

from tests.cli.refused_files import PLANS

SOLVE = """
    --gpus 2 --mem 1G                                   => --chain
    --chain gpt2.json --mem 1G                          => --gpus
    --chain gpt2.json --gpus 2                          => --mem
    --chain gpt2.json --gpus 0 --mem 1G                 => --gpus: 0
    --chain gpt2.json --gpus two --mem 1G               => --gpus: 'two' is not
    --chain gpt2.json --gpus 2 --mem '16Gb and more'    => --mem: '16Gb and more'
    --chain gpt2.json --gpus 3 --mem 1G,2G              => --mem: 2 entries
    --chain gpt2.json --gpus 2 --mem 9G --bandwidth 12  => --bandwidth: layers and transfers take
    --chain gpt2.json --gpus 2 --mem 9G --bandwidth 12  => bytes a second: is 12GB/s meant?
    --chain gpt2.json --gpus 2 --mem 9G --bandwidth 1GB/s --latency 100000s => --latency: layers
    --chain gpt2.json --platform far.json               => --platform: layers and transfers take
    --chain none.json --gpus 2 --mem 1G                 => none.json: no such
    --chain minus.json --gpus 2 --mem 9G => minus.json: layers[0].forward_ns: -
    --chain minus.json --gpus 2 --mem 9G => Give an integer from 0
    --chain whole.json --gpus 2 --mem 9G --split-backward => whole.json: layers[1].backward_input_ns
    --chain whole.json --gpus 2 --mem 9G --split-backward => schedopt profile measures both
    --chain whole.json --gpus 2 --mem 9G --split-backward => leave the split (--split-backward) out
    --chain gpt2.json --platform nodes.json --gpus=4 => file and give that: --platform FILE (sche
    --chain gpt2.json --platform nodes.json --mem=1G        => --mem: given together with --platform
    --chain gpt2.json --platform nodes.json --reserved=1G   => --reserved: given together with
    --chain gpt2.json --platform nodes.json --speed=1       => --speed: given together with
    --chain gpt2.json --platform nodes.json --bandwidth=1   => --bandwidth: given together with
    --chain gpt2.json --platform nodes.json --latency=1     => --latency: given together with
    --chain gpt2.json --platform nodes.json --duplex=full   => --duplex: given together with
    --chain bare.json --gpus 2 --mem 9G --batch 8 => bare.json: layers[1].gradient_bytes: absent
    --chain bare.json --gpus 2 --mem 9G --batch 8 --shard parameter => bare.json: layers[1].gradient
    --chain bare.json --gpus 2 --mem 9G --batch 8 --shard optimizer => bare.json: layers[1].gradient
    --chain four.json --gpus 2 --mem 9G --batch 6 => --batch: 6 samples are no whole number of
    --chain four.json --gpus 2 --mem 9G --batch 6 => Give 4 or 8, or profile the chain with another
    --chain gpt2.json --platform bits.json => bits.json: links[0].bandwidth: '1Gbit/s' is not a rate
    --chain gpt2.json --platform dgx-h900:8 => dgx-h900:8: there is no preset 'dgx-h900'. Give one
    --chain fewer.json --gpus 2 --mem 9G => fewer.json: variants[1].chain.layers: has 2 layers, and
    --chain named.json --gpus 2 --mem 9G => named.json: variants[1].chain.layers[1].name: 'other', a
    --chain tied.json --gpus 2 --mem 9G => tied.json: variants[1].chain.same_gpu: ties other layers
    --chain sizes.json --gpus 2 --mem 9G --batch 7 => --batch: 7 samples are no whole number of micr
    --chain sizes.json --gpus 2 --mem 9G --batch 8 --tensor-parallel 4 => --tensor-parallel: no node
    --fix nodes.plan.json --bandwidth=1GB/s => --bandwidth: given together with a plan for several
    --fix nodes.plan.json --latency=5us     => --latency: given together with a plan for several
    --fix nodes.plan.json --duplex=half     => Give other nodes: --platform FILE
    --fix nodes.plan.json --gpus 9          => --gpus
    --fix plan.json --chain gpt2.json --gpus 3 --mem 1G => chain_sha256: the plan was made for
    --fix plan.json --allocation general    => --allocation: given together with --fix
    --fix plan.json --training-state mixed-adam => --training-state: given without a chain
    --fix plan.json --solver contiguous_cpsat   => --solver: contiguous_cpsat chooses the allocation
    --fix plan.json --solver contiguous_cpsat   => Leave --fix out, or use periodic, which keeps the
    --chain resnet50.json --gpus 2 --mem 8G --for megatron => layers: the names of the layers do not
    --chain resnet50.json --gpus 2 --mem 8G --batch 8 --hybrid => --hybrid: copies of shards are
    --chain resnet50.json --gpus 2 --mem 8G --batch 8 --hybrid => Name its layers as a profile does
    --fix plan.json --for megatron              => --for: given together with --fix
    --chain gpt2.json --gpus 4 --mem 2G -o gpt2.json => gpt2.json: holds a chain, which would be
"""
SOLVE_GPT2 = """
    --bandwidth 100Gbit/s       => --bandwidth
    --latency 5us               => --latency
    --speed 1e-3                => --speed
    --solver magic              => contiguous
    --time-limit 0              => --time-limit
    --time-limit long           => Error: --time-limit: 'long' is not a number
    --time-limit 10%            => Error: --time-limit: '10%' is not a number. Give one
    --gap 2.5%                  => Error: --gap: '2.5%' is not a number. Give it as a part: 0.025
    -o /none/plan.json          => /none/plan.json: cannot be written
    --microbatches 8 --max-k 2  => --max-k: given together with --microbatches
    --microbatches 8 --solver contiguous_cpsat => --microbatches: contiguous_cpsat does not do a
    --microbatches 8 --solver contiguous_cpsat => Leave the number of micro-batches (--microbatches)
    --solver periodic           => --solver: no plan so far to improve. Fix the stages of a plan
    --solver step               => --microbatches: step needs a number of micro-batches
    --solver thinned            => --max-k: thinned makes patterns of two micro-batches or more
    --grain fine                => Error: --grain: 'fine' is not one of 'stage', 'layer'
    --memory most               => Error: --memory: 'most' is not one of 'sum', 'peak'
    --workers 0                 => Error: --workers: '0' is too little. Give at least 1
    --period 0                  => --period: '0'
    --period soon               => --period
    --for megatron --max-k 2    => --max-k: given together with --for
    --for megatron --microbatches 4 --split-backward => --split-backward: Megatron-LM runs whole
    --replicas 2 --microbatches 8 => --replicas: replicas add their gradients up at the end of a
    --replicas 2 --microbatches 8 => Ask for a batch (--batch) in place of --microbatches
    --replicas 2 --solver periodic => --solver: periodic gives each stage one GPU. Leave it out, or
    --replicas 2 --for deepspeed => --replicas: replicas add up the gradients of a step of
    --solver replicated --speed 1,1,1,0.5 => stages with replicas need equal GPUs, each two with a
    --shard optimizer           => --shard: only replicas share the state of a stage
    --solver training_step      => rule.update_every: training_step needs a step that ends with
    --batch eight               => --batch: 'eight' is not a whole number
    --batch 0                   => --batch: 0 is out of range
    --batch 8 --replicas 0      => --replicas: 0 is out of range
    --batch 8 --replicas 1 --shard optimizer => --shard: only replicas share the state of a stage
    --batch 8 --shard weights   => --shard: 'weights' is not one of 'none', 'optimizer'
    --batch 8 --replicas 1 --shard parameter => --shard: only replicas share the state of a stage
    --batch 8 --replicas 1 --uneven => --uneven: only replicas are dealt unequal numbers
    --batch 8 --uneven --for torch  => --uneven: only replicas are dealt unequal numbers
    --batch 8 --hybrid --for deepspeed => Ask for a batch (--batch), with no engine (--for) or one
    --hybrid --shard optimizer --replicas 2 => --hybrid: copies of shards are looked for only in
    --batch 8 --hybrid --for megatron --shard none => --hybrid: there are copies of shards where
    --uneven --replicas 2       => --uneven: replicas are dealt unequal numbers of micro-batches
    --hybrid => Share the optimizer state or more (--shard), or leave it out
    --batch 8 --grain layer     => --grain: stages of a training step run as one
    --batch 8 --max-k 2         => --batch: given together with --max-k
    --batch 8 --microbatches 8  => --batch: given together with --microbatches
    --batch 8 --for megatron --shard parameter => --shard: in a pipeline Megatron-LM shares the
    --batch 8 --for megatron --solver training_step => --solver: training_step does not look at
    --batch 8 --for megatron --speed 1,1,1,0.5 => replicas of stages need equal GPUs
    --batch 8 --for slurm       => --for: 'slurm' is not one of 'megatron', 'torchtitan'
    --batch 8 --fix plan.json   => --batch: given together with --fix
    --batch 8 --speed 1,1,1,0.5 => replicas need equal GPUs, in nodes of one size
"""
COMPARE = """
    --platform far.json                     => --platform: layers and transfers take
    --gpus 0 --mem 1                        => Error: --gpus: 0 is out of range
    --gpus 2                                => Error: --mem: not given
    --gpus 2 --mem 1 --systems best         => --systems: 'best' is not known
    --gpus 2 --mem 1 --microbatches 0       => --microbatches: 0 is out of
    --gpus 2 --mem 1 --bucket big           => --bucket: 'big' is not a size
    --gpus 2 --mem 1 --bucket 0             => --bucket: 0 is out of range
    --gpus 2 --mem 1 --time-limit 0         => --time-limit: 0 is not a time limit
    --gpus 2 --mem 1 --training-state x     => --training-state: 'x' is not
    --gpus 2 --mem 1 --plot x.gif           => .gif is no
    --gpus 2 --mem 1 --compare-with plan.json => --compare-with: 'plan' is a plan for another chain
    --gpus 2 --mem 1 --plans chain.json     => chain.json: cannot be made
    --gpus 2 --mem 1 -o no/c.json           => no/c.json: cannot be written
    --gpus 2 --mem 1 -o chain.json          => chain.json: holds a chain, which would be lost. Name
    --gpus 2 --mem 1 -o points.json         => points.json: holds a sweep
    --gpus 2 --mem 1 -o c.svg --plot c.svg => --plot and --output: c.svg is named twice. Name a file
"""
SWEEP = """
    --gpus 2 --mem 1 --batch 8 --max-k 2    => --batch: given together with --max-k
    --gpus 2 --mem 1 --batch 0              => batch: 0 is out of range
    --gpus 2 --mem 1 --replicas 2 --shard gradient => Error: --shard: gradients and parameters are
    --gpus 2 --mem 9G --bandwidth 1GB/s --latency 100000s => --latency: layers and transfers take
    --gpus 2 --mem 1 --shard optimizer      => shard: only replicas share the state of a stage
    --gpus 2x --mem 1                       => Error: --gpus: '2x' is not a number of GPUs
    --gpus 2 --mem 8G:16G                   => --mem: '8G:16G' is not a range
    --gpus 2 --mem 16G:8G:1G                => --mem: '16G:8G:1G' is not a range
    --gpus 2 --mem 8G:16G:0                 => --mem: '8G:16G:0' is not a range
    --gpus 2 --mem 0:1G:1                   => has 1000000001 sizes
    --gpus 2 --mem 1:600:1 --bandwidth 1,2  => 1200 points are too many
    --gpus 2 --mem 8Q                       => --mem: '8Q' is not a size
    --gpus 2 --mem 1 --bandwidth fast       => --bandwidth: 'fast' is not a rate
    --gpus 2 --mem 1 --reserved 2           => --reserved: 2 is more than
    --gpus 2 --mem 1 --latency 1us          => --latency: given without a bandwidth
    --gpus 2 --mem 1 --max-k 0              => --max-k: 0 is out of range
    --gpus 2 --mem 1 --time-limit 0         => --time-limit: 0 is not a time limit
    --gpus 2 --mem 1 --solver best          => --solver: 'best' is not known
    --gpus 2 --mem 99 --split-backward      => Error: chain.json: layers[0].backward_input_ns
    --gpus 2 --mem 1 --plot x.gif           => .gif is no
    --gpus 2 --mem 1 -o missing/x.json      => missing/x.json: cannot be written
    --gpus 2 --mem 1 -o chain.json          => this is a chain, not a sweep
    --gpus 2 --mem 1 --plans chain.json     => chain.json: cannot be made
    --gpus 2 --mem 1 --dask tcp://h:1 --jobs 1 => --jobs: given together with --dask
"""
PROFILE = """
    hf:gpt2 --fake                              => --fake and --on or --flops: go together
    hf:gpt2 --flops 1T                          => --fake and --on or --flops: go together
    hf:gpt2 --on h100                           => --fake and --on or --flops: go together
    hf:gpt2 --fake --on h100 --flops 1T         => --flops: given together with --on
    hf:gpt2 --fake --on h900                    => Error: --on: 'h900' is not one of 'a100'
    hf:gpt2 --fake --on h100 --dtype float64 => --on: how fast h100 computes float64 is not known
    hf:gpt2 --fake --flops 1T --verify          => --fake: given together with --verify
    hf:gpt2 --fake --flops 1T --device cuda     => --fake: given together with --device
    hf:gpt2 --fake --flops 1T --repeats 10      => --fake: given together with --repeats
    hf:gpt2 --fake --flops 1T --strict          => --fake: given together with --strict
    hf:gpt2 --fake --flops fast                 => --flops:
    hf:gpt2 --fake --flops 0                    => --flops:
    --shape layers=2,hidden=8,heads=2,ffn=8,vocabulary=9 => --shape: needs a GPU whose rates are
    hf:gpt2 --shape layers=2 --on h100          => --shape: given together with a model
    --shape layers=2 --on h100 --flops 1T       => --shape: given together with --flops
    --shape layers=2 --on h100 --device cuda    => --shape: given together with --device
    --shape layers=2 --on h100 --fake           => --shape: given together with --fake
    --shape layers=2 --on h100 --strict         => --shape: given together with --strict
    --shape layers=2 --on h100 --optimizer sgd  => --shape: given together with --optimizer
    --shape layers=2 --on h100 --image 8        => --shape: given together with --image
    --shape layers=2 --on h100 --min-share 0    => --shape: given together with --min-share
    --shape layers=2 --on h100 --dtype float16  => --dtype: given together with --shape
    hf:gpt2 --recompute-modules mlp             => --recompute-modules: the modules of a model that
    --shape layers=2 --on h100 --seq 0          => --seq: 0 is no number of tokens
    --shape layers=2 --on h100                  => --shape: hidden is not given
    --shape layers=2,depth=3 --on h100          => --shape: 'depth=3' is not known
    --shape layers --on h100                    => --shape: 'layers' is no NAME=NUMBER
    --shape layers=2,layers=3 --on h100         => --shape: layers stands there twice
    --shape layers=x --on h100                  => --shape: 'x' is no whole number for layers
    hf:gtp2 => MODEL: there is no model hf:gtp2. Did you mean gpt2?
    hf:gpt2:depth=3                             => MODEL: gpt2 has no option 'depth'
    hf:gpt2 --batch 0                           => --batch: '0' is not a number of samples
    hf:gpt2 --batch 1,2,1                       => --batch: a size is there twice
    hf:gpt2 --batch 1,2 --verify                => --verify: given together with several variants
    hf:llama --tensor-parallel 1,x   => --tensor-parallel: 'x' is not a number of GPUs
    hf:llama --tensor-parallel 2,4   => --tensor-parallel: 1, the whole model on one GPU, is missing
    hf:llama --fake --on l4 --tensor-parallel 1,4 => --tensor-parallel: 4 GPUs cannot share 2 key
    hf:gpt2 --fake --on l4 --tensor-parallel 1,2  => --tensor-parallel: hf:gpt2 has no plan that
    hf:llama --fake --flops 1T --tensor-parallel 1,2 => whose links say it (--on)
    hf:llama:layers=1 --seq 8 --tensor-parallel 1,2 => Start it as torchrun --nproc-per-node 2
    --links                                     => --links: needs a process for each GPU. Start it
    hf:gpt2 --links                             => --links: given together with a model
    --links --batch 2                           => --links: given together with --batch
    --links --shape layers=2                    => --links: given together with --shape
    --repeats 3                                 => MODEL: not given. Name a model, such as hf:gpt2
    own_models:build --batch 1,2                => --batch: own_models:build makes its own inputs
    hf:gpt2 --dtype int8 => Error: --dtype: 'int8' is not one of 'float32', 'bfloat16'
    hf:gpt2 --optimizer lion                    => Error: --optimizer: 'lion' is not one of 'adamw'
    no_such_module:build                        => no_such_module
    own_models:build --batch 4                  => --batch: own_models:build makes its own inputs
    own_models:build --dtype float64            => --dtype: own_models:build makes its own
    own_models:biuld => MODEL: own_models has no biuld. Did you mean build?
    own_models => MODEL: 'own_models' is not package.module:function
    own_models:build --repeats 1                => --repeats: 1 is too few
    own_models:build --warmup -1                => --warmup: -1 is too few
    own_models:build --min-share 1              => --min-share: 1 is
    own_models:build --device gpu               => --device: 'gpu' is not the name of a device
    own_models:build -o nowhere/chain.json      => nowhere/chain.json: cannot be written
    own_models:build -o plan.json               => plan.json: holds a plan, which would be lost
    --links -o gpt2.json                        => gpt2.json: holds a chain, which would be
"""
INSTANCE = """
    theorem4 --k 0                          => --k: 0 is out of range. Give an integer from 1 to
    theorem4 --k 4096                       => --k: 4096 is out of range.
    theorem5 --k 1                          => --k: 1 is out of range. Give an integer from 2 to 45
    theorem6 --k 1                          => --k: 1 is out of range.
    theorem6 --k 4 --memory 3 => --memory: 3 is out of range. Give an integer from 4 to
    uniform --layers 0                      => --layers: 0 is out of range.
    uniform --layers -3                     => --layers: -3 is out of range.
    uniform --layers 3 --gpus 0             => --gpus: 0 is out of range.
    uniform --layers 3 --forward soon       => --forward: 'soon' is not a time.
    uniform --layers 3 --backward -1ms      => --backward: '-1ms' is not a time.
    uniform --layers 3 --forward 0 --backward 0 => --forward: the layers take no
    uniform --layers 3 --forward 999999999s => --forward: 999999999000000000 is out of
    uniform --layers 9 --forward 100s       => --layers: the layers take 9000
    uniform --layers 3 --weight 1Gb         => --weight: '1Gb' is not a size
    uniform --layers 3 --activation x       => --activation: 'x' is not a size
    uniform --layers 3 --saved x            => --saved: 'x' is not a size
    uniform --layers 3 --mem much           => --mem: 'much' is not a size
    uniform --layers 3 --weight 9999T       => --weight: 9999000000000000 is out
    uniform --layers 3 --saved 9999T        => --saved: 9999000000000000 is out of
    uniform --layers 3 --backward 9999999s  => --backward: 9999999000000000 is out of
    uniform --layers 3 --activation 9999T   => --activation: 9999000000000000 is out of
    uniform --layers 3 --mem 9999T          => --mem: 9999000000000000 is out of range
    uniform --layers 3 --gpus 2 --mem 1G,2G => --mem: '1G,2G' is not a size
    random --layers 0 --seed 1              => --layers: 0 is out of range.
    random --layers 3 --seed -1             => --seed: -1 is out of range.
    random --layers 3 --seed 1 --gpus 0     => --gpus: 0 is out of range.
    random --layers 3 --seed 1 --mem 1,1    => --mem: '1,1' is not a size
    three-partition --theorem 3 --m 2 --yes => --theorem: '3' is not one of '1', '2'
    three-partition --m 2 --yes             => --theorem: not given
    three-partition --theorem 1 --m 2       => --yes/--no: not given
    three-partition --theorem 1 --m 0 --yes => --m: 0 is out of range. Give an integer from 1 to 256
    three-partition --theorem 2 --m 257 --yes   => --m: 257 is out of range.
    three-partition --theorem 1 --m 1 --no  => --m: 3 numbers that add up to V are a group
    three-partition --theorem 1 --m 13 --no => --m: 13 groups are too many to prove
    three-partition --theorem 1 --m 2 --total 8 --yes       => --total: 8 is out of range.
    three-partition --theorem 1 --m 2 --total 1048577 --no  => --total: 1048577 is out of range.
    three-partition --theorem 1 --m 2 --total 9 --no        => --total: each of 100 draws
    three-partition --theorem 1 --m 2 --yes --seed -1       => --seed: -1 is out of range.
    lemma2 -o none/c.json                   => none/c.json: cannot be written
    lemma2 -o plan.json                     => plan.json: holds a plan, which would be lost
    random --layers 3 --seed 1 -o .         => .: is a folder
    three-partition --theorem 1 --m 2 --yes -o .            => .: is a folder
"""
BENCH = """
    solvers --gpus 0                            => --gpus: '0' is not a number of GPUs
    solvers --gpus 2,x                          => --gpus: 'x' is not a number of GPUs
    solvers --levels 0.5                        => --levels: '0.5' is not a memory level
    solvers --levels 1,nan                      => --levels: 'nan' is not a memory level
    solvers --bandwidths fast                   => --bandwidths: 'fast' is not a rate
    solvers --solvers magic                     => --solvers: 'magic' is not known
    solvers --jobs 1 --dask tcp://h:1           => --jobs: given together with --dask
    solvers --time-limit 0                      => --time-limit: 0 is not a time limit
    solvers --chains nowhere                    => nowhere: is not a folder
    solvers -o nowhere/runs.jsonl               => nowhere/runs.jsonl: cannot be written
    solvers -o runs.json                        => --output: runs.json does not end in .jsonl
    solvers -o /dev/full                        => --output: /dev/full does not end in .jsonl
    solvers -o ''                               => --output: . does not end in .jsonl
    claims --only Z9                            => --only: 'Z9' is not a claim. Choose C1
    claims -o claims.md                         => --output: claims.md does not end in .json
    claims -o nowhere/claims.json               => nowhere/claims.json: cannot be written
    general --only all => --only: 'all' is not a part. Choose chains, theorems, speed
    general --workers 0                         => --workers: '0' is too little. Give at least 1
    general --seed -1                           => --seed: '-1' is too little. Give at least 0
    general --time-limit 0                      => --time-limit: 0 is not a time limit
    general --chains nowhere                    => nowhere: is not a folder
    general -o x.md => x.md does not end in .json or .jsonl. Name a file that ends in .json or
    periodic --seeds 0                          => --seeds: '0' is too little. Give at least 1
    periodic --time-limit 0                     => --time-limit: 0 is not a time limit
    running --steps 0                           => --steps: '0' is too little. Give at least 1
    running --chain nowhere.json                => nowhere.json: no such file
    schedules --microbatches 1,x                => --microbatches: 'x' is not a number of
    schedules --workers 0                       => --workers: '0' is too little. Give at least 1
    schedules --time-limit 0                    => --time-limit: 0 is not a time limit
    schedules --chains nowhere                  => nowhere: is not a folder
    schedules -o found.md                       => --output: found.md does not end in .json
    hardness --instance none.json -o x.json     => --output: given beside --instance
    hardness --workers 0                        => --workers: '0' is too little. Give at least 1
    hardness --time-limit 0                     => --time-limit: 0 is not a time limit
    hardness -o x.md                            => --output: x.md does not end in .json
    hardness -o none/x.json                     => none/x.json: cannot be written
"""
MISUSED = """
    bench schedules --quick         => results/schedules-quick.jsonl: cannot be written
    bench hardness --json           => --json: goes with --instance. Name one
    bench hardness --instance chain.json --quick => --quick: given beside --instance
    bench hardness --instance none.json         => none.json: no such file
    instance theorem4 -o c.json                 => --k: not given. See: schedopt instance theorem4
    instance theorem4 --k two -o c.json         => --k: 'two' is not a whole number. Give one
    instance theorem5 --k 2.5 -o c.json         => --k: '2.5' is not a whole number
    instance theorem6 --k 3 --memory 3G -o c.json => --memory: '3G' is not a whole number
    instance section6-1                         => --output: not given
    instance uniform -o c.json                  => --layers: not given
    instance random --layers 3 -o c.json        => --seed: not given
    instance lemma2 --k 3 -o c.json => --k: no such option. See: schedopt instance lemma2 --help
    instance theorem7 -o c.json => theorem7: no such command. Did you mean theorem6? See: schedopt i
    import small.txt -o c.json => --from: not given. Choose from: pipedream, dnn-partitioning, piper
    report plan.json                            => --output: not given. See: schedopt report --help
    slove => slove: no such command. Did you mean solve? See: schedopt --help
    --versoin => --versoin: no such option. Did you mean --version? See: schedopt --help
    import a.json --profile b => --profile: no such option. See: schedopt import --help
    solve --chian c.json => --chian: no such option. Did you mean --chain? See: schedopt solve
    show plan.json -o => -o: requires an argument. See: schedopt show --help
    solve --recompute=no => --recompute: does not take a value. See: schedopt solve --help
    solve c.json                                => c.json: is not expected. See: schedopt solve
    bench sped => sped: no such command. Did you mean speed? See: schedopt bench --help
    check                                       => PLAN: not given. See: schedopt check --help
    check plan.json other.json                  => other.json: is not expected
    show                                        => FILE: not given
"""


def rows(prefix: str, table: str, suffix: str = "") -> list[tuple[str, str]]:
    """Return the command lines of a table, each with what is said of it."""
    split = (line.partition("=>") for line in table.strip().splitlines())
    return [
        (" ".join((prefix, line.strip(), "" if " -o " in line else suffix)), words.strip())
        for line, _, words in split
    ]


REFUSED = [
    *rows("solve", SOLVE),
    *rows("solve --chain gpt2.json --gpus 4 --mem 2G", SOLVE_GPT2),
    *rows("compare --chain chain.json", COMPARE),
    *rows("sweep --chain chain.json", SWEEP),
    *rows("profile", PROFILE, "-o c.json"),
    *rows("", PLANS),
    *rows("instance", INSTANCE, "-o c.json"),
    *rows("bench", BENCH, "-o figures.jsonl"),
    *rows("", MISUSED),
]
