#!/bin/bash
# Several nodes under Slurm: `sbatch docs/slurm.sh` from the project's root, after one run on the
# login node or in a job of one node has made the environment and the tokens. Flags of the scripts
# go behind it: `sbatch docs/slurm.sh --model gpt2-xl --batch-size 128`.
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=00:30:00

technique=${T:-distributed_data_parallel}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / SLURM_GPUS_PER_NODE))

# One agent a node; the first node's keeps the appointment. --kill-on-bad-exit ends the others' agents.
srun --kill-on-bad-exit=1 .venv/bin/python -m torch.distributed.run \
    --nnodes="$SLURM_NNODES" --nproc-per-node="$SLURM_GPUS_PER_NODE" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:29500" --rdzv-id="$SLURM_JOB_ID" \
    -m "beyond.$technique" "$@"
