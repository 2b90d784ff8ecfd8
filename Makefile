# Bare `make` lists everything below. Two scripts never run at once, whatever -j says: they would
# share the device and time each other.
.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Settings: each is a flag of the same name on every script (BATCH_SIZE is --batch-size).
STEPS        ?= 50           ## training steps, warm-up included
WARMUP       ?= 5            ## steps at the start that no statistic uses
BATCH_SIZE   ?= auto         ## sequences a step; auto: what fits this device
SEQ_LEN      ?= auto         ## tokens a sequence; auto: what fits this device
MODEL        ?= gpt2         ## gpt2-tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl
DATASET      ?= stdlib       ## stdlib, synthetic, a file or folder of text, or a Hugging Face Hub id
DEVICE       ?= auto         ## auto, cpu, cuda, cuda:N, mps
SEED         ?= 0            ## of the weights and the batches
ROUNDS       ?= 1            ## runs of each script, interleaved; from 2 on there are intervals
RESULTS_FILE ?= results.csv  ## where rows are appended
# Not settings of each script:
BUCKET_MB    ?= 25           ## for ddp, scaling, profile: MiB of gradients that several ranks sum at once
PLOTSPREFIX  ?=              ## for plots, ablate, compare, profile, scaling, gallery: of the charts' file names
DEVICE_NAME  ?=              ## for plots, table, report: part of a device's name; else the newest run's
TIMEOUT      ?= 60           ## for all, beyond, everything, ablate, together, recipe: minutes after which a run is ended
PRICE        ?=              ## for table and report: what an hour of this device costs
REPORT       ?= report.html  ## for report: where the page is written
JSON         ?=              ## for doctor: 1 for machines
N            ?= 2            ## for together: how many processes at once
T            ?=              ## for diff, profile, forecast, together: a technique, or all; for ablate: the whole, else the last rung; for ddp, scaling: else distributed_data_parallel
GPUS         ?=              ## for ddp, profile and train: how many; for scaling: as in GPUS="1 2 4"
WITHOUT      ?=              ## for diff: a technique whose diff is taken back from T
CPU          ?=              ## for profile: 1 adds where Python's time goes
MEMORY       ?=              ## for forecast: of a device that need not be here, as in 24GiB; for profile: 1 adds what was allocated when
A            ?=              ## for compare and report: a results file, or FILE:WORDS, as in A=results.csv:2.11
B            ?=              ## for compare and report: the same, as in B=results.csv:2.13; held against A
RECIPE       ?=              ## for recipe: where its script goes; else .cache/recipe/recipe.py
CHECK        ?=              ## for submit: a file to look at in place of making one
TORCH        ?=              ## for virtual-gpu: another torch, as in 2.11, or newest
RUN          ?=              ## for recipe: 1 runs it beside the baseline and the best, and compares

# For train, whose defaults for STEPS, MODEL and the rest are its own:
TOKENS_PER_STEP ?=           ## of all ranks and accumulated batches; 524288 on a GPU
LEARNING_RATE ?=             ## the highest; 6e-4 on a GPU
WEIGHT_DECAY ?=              ## of matrices; 0.1
CLIP         ?=              ## largest norm of the gradients; 1
VALIDATE_EVERY ?=            ## steps between validations; 250 on a GPU
VALIDATION_TOKENS ?=         ## held-out tokens of a validation, at most
CHECKPOINT_EVERY ?=          ## steps between checkpoints; else as validations
CORPUS_TOKENS ?=             ## use about so many tokens of the corpus; else all
WITH         ?=              ## techniques to merge into the loop, or none; else the recipe's
RESUME       ?=              ## 1 goes on with the newest run; or a run's folder
OUT          ?=              ## the run's folder; else training/ and the time
PLOT         ?=              ## 1 draws the loss curves while it trains

# Make keeps the blanks before a comment: strip takes them off.
flag  = --$(1)='$(strip $(2))'
FLAGS = $(call flag,steps,$(STEPS)) $(call flag,warmup,$(WARMUP)) \
        $(call flag,batch-size,$(BATCH_SIZE)) $(call flag,seq-len,$(SEQ_LEN)) \
        $(call flag,model,$(MODEL)) $(call flag,dataset,$(DATASET)) \
        $(call flag,device,$(DEVICE)) $(call flag,seed,$(SEED)) \
        $(call flag,rounds,$(ROUNDS)) $(call flag,results-file,$(RESULTS_FILE))
BUCKETS = $(call flag,bucket-mb,$(BUCKET_MB))
PREFIX  = $(call flag,plotsprefix,$(PLOTSPREFIX))
# A training run has defaults of its own: it is given what you give, and nothing else.
given    = $(if $(filter-out file default undefined,$(origin $(2))),$(call flag,$(1),$($(2))))
TRAINING = $(call given,steps,STEPS) $(call given,tokens-per-step,TOKENS_PER_STEP) \
           $(call given,batch-size,BATCH_SIZE) $(call given,seq-len,SEQ_LEN) \
           $(call given,model,MODEL) $(call given,dataset,DATASET) \
           $(call given,corpus-tokens,CORPUS_TOKENS) $(call given,device,DEVICE) \
           $(call given,seed,SEED) $(call given,bucket-mb,BUCKET_MB) \
           $(call given,learning-rate,LEARNING_RATE) $(call given,warmup,WARMUP) \
           $(call given,weight-decay,WEIGHT_DECAY) $(call given,clip,CLIP) \
           $(call given,validate-every,VALIDATE_EVERY) \
           $(call given,validation-tokens,VALIDATION_TOKENS) \
           $(call given,checkpoint-every,CHECKPOINT_EVERY) $(call given,with,WITH) \
           $(call given,resume,RESUME) $(call given,out,OUT) $(call given,plot,PLOT) \
           $(call given,results-file,RESULTS_FILE)
SELECTION = $(call flag,results-file,$(RESULTS_FILE)) $(call flag,device-name,$(DEVICE_NAME))

# PYTHON=python3 uses that environment as it is; without it, one is made here from requirements.txt,
# to which the checks add requirements-test.txt.
ifeq ($(origin PYTHON),undefined)
PYTHON      := .venv/bin/python
ENVIRONMENT := .venv/installed
CHECKS      := .venv/installed-test
endif

# A technique is a script whose docstring names its parent; there is no list to edit.
TECHNIQUES := $(basename $(notdir $(shell grep -l '^Parent: ' *.py beyond/*.py 2>/dev/null)))
BUCKETED   := $(basename $(notdir $(shell grep -l 'args\.bucket_mb' *.py beyond/*.py 2>/dev/null)))

##@ Run
baseline: no_optimization    ## plain float32: what the others are measured against
tf32: tensorFloat32          ## + float32 matrix products on tensor cores
bf16: brainFloat16           ## + bfloat16 autocast
flash: flash_attention       ## + torch.compile + FlashAttention
fused: fused_optimizer       ## + fused AdamW
8bit: 8bit_optimizer         ## flash_attention with 8-bit AdamW

all: WHICH := ladder
all: ceilings                ## the seven of the ladder once a round, the table, the charts
beyond: WHICH := beyond
beyond: ceilings             ## the same for the scripts of beyond/, with the baseline and their parents
everything: WHICH := everything
everything: ceilings         ## the same for all techniques
all beyond everything:
	@$(PYTHON) -m Utils.commands.suite $(WHICH) $(FLAGS) $(call flag,timeout,$(TIMEOUT)); status=$$?; \
	if [ $$status -le 1 ]; then $(MAKE) plots || status=1; fi; exit $$status

ablate: ceilings             ## each technique alone, and the whole without it: table and chart
	@$(PYTHON) -m Utils.commands.ablation $(strip $(T)) $(FLAGS) $(PREFIX) $(call flag,timeout,$(TIMEOUT))

together: $(ENVIRONMENT)     ## several processes of a script at once against one alone; N=2 T=NAME ROUNDS=6
	@$(PYTHON) -m Utils.commands.together '$(strip $(T))' $(FLAGS) $(call flag,n,$(N)) $(call flag,timeout,$(TIMEOUT))

ddp: $(ENVIRONMENT)          ## one run on several GPUs, or cores with DEVICE=cpu; GPUS=4, T=fully_sharded
	@$(PYTHON) -m Utils.commands.ddp '$(strip $(T))' $(call flag,gpus,$(GPUS)) $(FLAGS) $(BUCKETS)

scaling: $(ENVIRONMENT)      ## strong and weak scaling: table and chart; GPUS="1 2 4 8" ROUNDS=4
	@$(PYTHON) -m Utils.commands.scaling '$(strip $(T))' $(call flag,gpus,$(GPUS)) $(FLAGS) $(BUCKETS) $(PREFIX)

smoke: $(ENVIRONMENT)        ## the seven at a tiny model, in about a minute; results.csv stays as it is
	@mkdir -p .cache/smoke
	@$(PYTHON) -m Utils.commands.suite $(FLAGS) --model gpt2-tiny --steps 8 --warmup 3 --rounds 1 \
	    --results-file .cache/smoke/results.csv

$(TECHNIQUES): $(ENVIRONMENT)
	@$(PYTHON) $(if $(wildcard $@.py),$@.py,-m beyond.$@) $(FLAGS) $(if $(filter $@,$(BUCKETED)),$(BUCKETS))

ceilings: $(ENVIRONMENT)     ## measure, once, how fast products and memory can be on this device
	@$(PYTHON) -m Utils.commands.ceilings $(call flag,device,$(DEVICE))

##@ Before and inside a step
doctor: $(ENVIRONMENT)       ## will it run here? device, tool chain, a line a technique, advice; JSON=1
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("doctor: $(PYTHON) is older than 3.11; PYTHON=... names another")'
	@$(PYTHON) -m Utils.commands.doctor $(FLAGS) $(if $(filter-out 0,$(strip $(JSON))),--json)

forecast: $(ENVIRONMENT)     ## peak memory before running, and the largest batch; DEVICE=cuda MEMORY=24GiB
	@$(PYTHON) -m Utils.commands.forecast $(if $(filter-out all,$(T)),$(strip $(T)),ladder) $(FLAGS) \
	    $(call flag,memory,$(MEMORY))

profile: $(ENVIRONMENT)      ## where a step's time goes and what to do about it; T=NAME or T=all, CPU=1, MEMORY=1
	@$(PYTHON) -m Utils.commands.profile '$(strip $(T))' $(FLAGS) $(BUCKETS) $(PREFIX) $(if $(filter 1,$(CPU)),--cpu) \
	    $(if $(filter 1,$(MEMORY)),--memory) $(call flag,gpus,$(GPUS))

##@ Read
plots: $(ENVIRONMENT)        ## draw the charts into plots/, and the loss curves of training runs
	@$(PYTHON) plot_results.py $(SELECTION) $(PREFIX)
	@if [ -d training ]; then $(PYTHON) -m pretraining.curves; fi

table: $(ENVIRONMENT)        ## print the results as GitHub-markdown tables; PRICE=2.50 adds cost
	@$(PYTHON) -m Utils.commands.table $(SELECTION) $(call flag,price,$(PRICE))

readme: $(ENVIRONMENT)       ## put those tables into README.md
	@$(PYTHON) -m Utils.commands.table $(SELECTION) --into README.md

diff: $(ENVIRONMENT)         ## what a technique is: its script against its parent's; T=flash_attention
	@$(PYTHON) -m Utils.commands.diff diff '$(strip $(T))' '$(strip $(WITHOUT))'

compare: $(ENVIRONMENT)      ## two devices, torch versions or commits; A=results.csv:2.11 B=results.csv:2.13
	@$(PYTHON) -m Utils.commands.compare '$(strip $(A))' '$(strip $(B))' $(PREFIX)

report: $(ENVIRONMENT)       ## all of it on one page, REPORT=report.html; with A= and B= those two compared
	@$(PYTHON) -m Utils.commands.report $(SELECTION) $(call flag,price,$(PRICE)) $(call flag,report,$(REPORT)) \
	    $(call flag,a,$(A)) $(call flag,b,$(B))

recipe: $(ENVIRONMENT)       ## the fewest techniques as fast as the best measured: list, script, lines to copy
	@$(PYTHON) -m Utils.commands.recipe $(SELECTION) $(call flag,recipe,$(RECIPE)) $(call flag,run,$(RUN)) \
	    $(call flag,rounds,$(ROUNDS)) $(call flag,device,$(DEVICE)) $(call flag,seed,$(SEED)) \
	    $(call flag,timeout,$(TIMEOUT))

##@ Keep a model
train: $(ENVIRONMENT)        ## pretrain and keep it, on the recipe's techniques; RESUME=1 goes on, PLOT=1 draws, GPUS=8
	@$(PYTHON) $(if $(strip $(GPUS)),-m torch.distributed.run --standalone --nproc-per-node=$(strip $(GPUS))) \
	    -m pretraining.train $(TRAINING)

##@ Share
submit: $(ENVIRONMENT)       ## one file to attach to a pull request: rows, environment, charts, no names
	@$(PYTHON) -m Utils.commands.submit $(if $(strip $(CHECK)),check '$(strip $(CHECK))',make) $(SELECTION)

gallery: $(ENVIRONMENT)      ## devices side by side: the submissions in results/ and your own rows
	@$(PYTHON) -m Utils.commands.gallery $(call flag,results-file,$(RESULTS_FILE)) $(PREFIX)

##@ Keep
init_results: $(ENVIRONMENT) ## write the header of the results file where there is none
	@$(PYTHON) -m Utils.commands.results init $(call flag,results-file,$(RESULTS_FILE))

reset: $(ENVIRONMENT)        ## empty results and plots; the old file is kept under a dated name
	@$(PYTHON) -m Utils.commands.results reset $(call flag,results-file,$(RESULTS_FILE))
	@rm -f plots/*.png plots/*.svg

clean:                       ## remove caches: tokens, compiled kernels; never results or .venv
	rm -rf .cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

##@ Check
# First, so that none of them is still running when all others have ended.
LONGEST = $(addprefix tests/test_,ladder.py suite.py variants.py known.py forecast.py)
TESTS   = $(LONGEST) $(filter-out $(LONGEST),$(wildcard tests/test_*.py))

# Kernels without vector instructions take a compiler half as long, and ours take it most of the time.
QUICKLY = OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=0

test: $(CHECKS)              ## the tests that need no GPU
	@$(QUICKLY) $(PYTHON) -m pytest -m 'not gpu and not timing' -n auto --maxprocesses 4 \
	    --dist loadfile --no-loadscope-reorder $(TESTS); most=$$?; \
	$(PYTHON) -m pytest -m timing; timed=$$?; [ $$most -eq 0 ] && [ $$timed -eq 0 ]

lint: $(CHECKS)              ## ruff: errors and formatting
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .

gpu-check: $(CHECKS)         ## on a GPU: its tests, of all techniques, and the seven at 20 steps
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("gpu-check: torch sees no CUDA device here")'
	@mkdir -p .cache/gpu-check
	@$(PYTHON) -m pytest -m gpu -p no:cacheprovider tests/test_gpu.py; tests=$$?; \
	$(PYTHON) -m Utils.commands.suite $(FLAGS) --steps 20 --device cuda --rounds 1 \
	    --results-file .cache/gpu-check/results.csv; scripts=$$?; \
	result() { if [ $$1 -eq 0 ]; then echo passed; else echo FAILED; fi; }; \
	echo "gpu-check: GPU tests $$(result $$tests), scripts $$(result $$scripts)"; \
	[ $$tests -eq 0 ] && [ $$scripts -eq 0 ]

virtual-gpu: $(ENVIRONMENT)  ## without a GPU: the CUDA path on a virtual one, in an environment of 6 GB
	@$(PYTHON) -m tests.virtual_gpu $(call flag,torch,$(TORCH))

help:                        ## this list
	@awk '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  match($$0, /^[a-zA-Z0-9_-]+:[^=].*## /) { name = $$1; sub(":", "", name); \
	    printf "  %-20s %s\n", name, substr($$0, RSTART + RLENGTH) }' Makefile
	@echo; echo 'Techniques, each a target by its own name'
	@python3 -m Utils.commands.diff list
	@awk '/^# Settings/ { print "\nVariables, as in make all ROUNDS=3 STEPS=100" } \
	  match($$0, /^[A-Z_]+ *\?=.*## /) { split($$0, part, / *\?= */); value = part[2]; sub(/ *##.*/, "", value); \
	    printf "  %-24s %s\n", part[1] "=" value, substr($$0, RSTART + RLENGTH) }' Makefile
	@echo; echo 'PYTHON=python3 uses an existing environment instead of making .venv.'

.venv/installed: requirements.txt
	@python3 -c 'import sys; sys.version_info >= (3, 11) or sys.exit("python3 is older than 3.11; PYTHON=... names another")'
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/installed-test: .venv/installed requirements-test.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	@touch $@

.PHONY: baseline tf32 bf16 flash fused 8bit all beyond everything ablate ddp scaling together smoke ceilings $(TECHNIQUES) \
        doctor forecast profile train plots table readme diff compare report recipe submit gallery \
        init_results reset clean test lint gpu-check virtual-gpu help
