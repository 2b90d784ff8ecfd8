# `make` alone lists all targets. Two scripts never run at once, whatever -j says: they would share
# the device and slow each other down.
.NOTPARALLEL:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Under another name, as a recipe line that names MAKE runs even with `make -n`.
SELF := $(MAKE)

# Settings: each is a flag of the same name on every script (BATCH_SIZE is --batch-size).
STEPS        ?= 50           ## training steps, warm-up included
WARMUP       ?= 5            ## first steps, which no statistic uses
MIN_SECONDS  ?= auto         ## shortest timed part, for which steps are added; auto: 10 on a GPU, 0 on a CPU
BATCH_SIZE   ?= auto         ## sequences per step; auto: the shape that the baseline fits on this device
SEQ_LEN      ?= auto         ## tokens per sequence; auto: as for BATCH_SIZE
MODEL        ?= gpt2         ## gpt2-tiny, gpt2, gpt2-medium, gpt2-large or gpt2-xl
DATASET      ?= stdlib       ## stdlib, synthetic, a file or folder of text, or a Hugging Face Hub id
DEVICE       ?= auto         ## auto, cpu, cuda, cuda:N or mps
SEED         ?= 0            ## seed of weights and batches; round r uses SEED + r
ROUNDS       ?= 1            ## runs per script, in turns with its parent; intervals need 2 or more
RESULTS_FILE ?= results.csv  ## file that rows are appended to
# Not settings of each script:
BUCKET_MB    ?= 25           ## ddp, scaling, profile: MiB of gradients per all-reduce
PLOTSPREFIX  ?=              ## plots, ablate, compare, profile, scaling, gallery: prefix of the charts' file names
DEVICE_NAME  ?=              ## plots, table, report, recipe, submit, field-report: part of a device's name; default: the newest run's
PRECISION    ?=              ## all, beyond, everything, ablate: add rounds until intervals over the parent are so narrow, as in 2%
BASE         ?=              ## all, beyond, everything, ablate, recipe, forecast, doctor, table, plots, report: a script of your own, by name or path
SCRIPT       ?=              ## adopt: path of a script of your own
TIMEOUT      ?= 60           ## all, beyond, everything, ablate, together, recipe: minutes until a run is stopped; with PRECISION also the whole
PRICE        ?=              ## table, report: price of one hour of this device
REPORT       ?= report.html  ## report: the page to write
JSON         ?=              ## doctor: 1 prints JSON
N            ?= 2            ## together: number of processes
T            ?=              ## diff, profile, forecast, together: a technique, or all; ablate: last script of the line; ddp, scaling: a distributed script
GPUS         ?=              ## ddp, profile, train: number of GPUs; scaling: several numbers, as in GPUS="1 2 4"
WITHOUT      ?=              ## all, beyond, everything with BASE: techniques to leave out; diff: one whose diff is removed from T
CPU          ?=              ## profile: 1 adds Python's functions
MEMORY       ?=              ## forecast: memory of a device that need not be here, as in 24GiB; profile: 1 adds a memory snapshot; virtual-gpu: 1 compares peaks
TOKENS       ?=              ## forecast with DEVICE=all: tokens to train on, as in 1e10
PRICES       ?=              ## forecast with DEVICE=all: a TOML file of dollars per hour, as in a100 = 1.79
AGAINST      ?=              ## forecast: published compares it with published figures
WRITE        ?=              ## forecast with AGAINST=published: 1 makes the check and its constants anew
A            ?=              ## compare, report: a results file, or FILE:WORDS, as in A=results.csv:2.11
B            ?=              ## compare, report: the same for the other side, as in B=results.csv:2.13
RECIPE       ?=              ## recipe: the script to write; default .cache/recipe/recipe.py
CHECK        ?=              ## submit: a file to check instead of making one
TORCH        ?=              ## virtual-gpu: another torch, as in 2.11, or newest
PART         ?=              ## reference: ladder, ablation or beyond; else all
RUN          ?=              ## recipe: 1 runs the recipe beside the baseline and the fastest

# For train, whose defaults for STEPS, MODEL and the rest are its own:
TOKENS_PER_STEP ?=           ## of all ranks and accumulated batches; default 524288 on a GPU
LEARNING_RATE ?=             ## peak learning rate; default 6e-4 on a GPU
WEIGHT_DECAY ?=              ## of matrices; default 0.1
CLIP         ?=              ## largest norm of the gradients; default 1
VALIDATE_EVERY ?=            ## steps between validations; default 250 on a GPU
VALIDATION_TOKENS ?=         ## most held-out tokens per validation
CHECKPOINT_EVERY ?=          ## steps between checkpoints; default: VALIDATE_EVERY
CORPUS_TOKENS ?=             ## tokens of the corpus to use; default: all
WITH         ?=              ## techniques to merge into the loop, or none; default: the recipe's
RESUME       ?=              ## 1 resumes the newest run; or a run's folder
OUT          ?=              ## the run's folder; default training/ and the time
PLOT         ?=              ## 1 draws the loss curves during training

# Make keeps the blanks before a comment: strip takes them off.
flag  = --$(1)='$(strip $(2))'
FLAGS = $(call flag,steps,$(STEPS)) $(call flag,warmup,$(WARMUP)) \
        $(call flag,min-seconds,$(MIN_SECONDS)) \
        $(call flag,batch-size,$(BATCH_SIZE)) $(call flag,seq-len,$(SEQ_LEN)) \
        $(call flag,model,$(MODEL)) $(call flag,dataset,$(DATASET)) \
        $(call flag,device,$(DEVICE)) $(call flag,seed,$(SEED)) \
        $(call flag,rounds,$(ROUNDS)) $(call flag,results-file,$(RESULTS_FILE))
SUITE   = $(FLAGS) $(call flag,timeout,$(TIMEOUT)) $(call flag,precision,$(PRECISION))
OF_BASE = $(call flag,base,$(BASE))
OMITTED = $(call flag,without,$(WITHOUT))
BUCKETS = $(call flag,bucket-mb,$(BUCKET_MB))
PREFIX  = $(call flag,plotsprefix,$(PLOTSPREFIX))
# A training run has its own defaults, so only variables that you set are passed on.
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
SELECTION = $(call flag,results-file,$(RESULTS_FILE)) $(call flag,device-name,$(DEVICE_NAME)) $(OF_BASE)

# PYTHON=python3 uses that environment as it is; without it, one is made here from requirements.txt,
# to which the checks add requirements-test.txt.
ifeq ($(origin PYTHON),undefined)
PYTHON      := .venv/bin/python
ENVIRONMENT := .venv/installed
CHECKS      := .venv/installed-test
endif

# A technique is a script whose docstring names its parent; there is no list to edit.
SCRIPTS    := $(shell grep -rl --include='*.py' '^Parent: ' *.py beyond 2>/dev/null)
TECHNIQUES := $(basename $(notdir $(SCRIPTS)))
BUCKETED   := $(basename $(notdir $(shell grep -rl --include='*.py' 'args\.bucket_mb' *.py beyond 2>/dev/null)))

##@ Run
baseline: no_optimization    ## plain float32, the reference for all ratios
tf32: tensorFloat32          ## + float32 matrix products on tensor cores
bf16: brainFloat16           ## + bfloat16 autocast
flash: flash_attention       ## + torch.compile and FlashAttention
fused: fused_optimizer       ## + fused AdamW
8bit: 8bit_optimizer         ## flash_attention with 8-bit AdamW

all: WHICH := ladder
all: ceilings                ## run the seven scripts of the ladder, print the table, draw the charts
beyond: WHICH := beyond
beyond: ceilings             ## the same for the scripts of beyond/, the baseline and their parents
everything: WHICH := everything
everything: ceilings         ## the same for all techniques
all beyond everything:
	@$(PYTHON) -m Utils.commands.estimate $(WHICH) $(SUITE) $(OF_BASE) $(OMITTED)
	@$(PYTHON) -m Utils.commands.suite $(WHICH) $(SUITE) $(OF_BASE) $(OMITTED); status=$$?; \
	if [ $$status -le 1 ]; then $(SELF) plots || status=1; fi; exit $$status

reference: ceilings          ## make the reference results anew, with charts and pages; resumes; PART=ladder
	@$(PYTHON) -m Utils.commands.reference $(strip $(PART)) $(call flag,device,$(DEVICE)) \
	    $(call flag,results-file,$(RESULTS_FILE))
	@$(SELF) plots readme

adopt: $(ENVIRONMENT)        ## check a script of your own as a base, and list the techniques that apply; SCRIPT=my_model.py
	@$(PYTHON) -m Utils.commands.adopt '$(strip $(SCRIPT))' $(FLAGS)

ablate: ceilings             ## ablation: each technique alone, and the whole without it; table and chart
	@$(PYTHON) -m Utils.commands.ablate $(strip $(T)) $(SUITE) $(OF_BASE) $(PREFIX)

together: $(ENVIRONMENT)     ## several processes of one script at once, compared with one; N=2 T=NAME ROUNDS=6
	@$(PYTHON) -m Utils.commands.together '$(strip $(T))' $(FLAGS) $(call flag,n,$(N)) $(call flag,timeout,$(TIMEOUT))

ddp: $(ENVIRONMENT)          ## one run on several GPUs, or on CPU cores with DEVICE=cpu; GPUS=4 T=fully_sharded
	@$(PYTHON) -m Utils.commands.ddp '$(strip $(T))' $(call flag,gpus,$(GPUS)) $(FLAGS) $(BUCKETS)

scaling: $(ENVIRONMENT)      ## strong and weak scaling: table and chart; GPUS="1 2 4 8" ROUNDS=4
	@$(PYTHON) -m Utils.commands.scaling '$(strip $(T))' $(call flag,gpus,$(GPUS)) $(FLAGS) $(BUCKETS) $(PREFIX)

smoke: $(ENVIRONMENT)        ## run the seven on a tiny model, in about a minute; results.csv is not touched
	@mkdir -p .cache/smoke
	@$(PYTHON) -m Utils.commands.suite $(FLAGS) --model gpt2-tiny --steps 8 --warmup 3 --rounds 1 \
	    --results-file .cache/smoke/results.csv

$(TECHNIQUES): $(ENVIRONMENT)
	@$(PYTHON) $(if $(wildcard $@.py),$@.py,-m $(subst /,.,$(basename $(filter %/$@.py,$(SCRIPTS))))) $(FLAGS) $(if $(filter $@,$(BUCKETED)),$(BUCKETS))

ceilings: $(ENVIRONMENT)     ## measure peak matrix-product rate and memory bandwidth of this device, once
	@$(PYTHON) -m Utils.commands.ceilings $(call flag,device,$(DEVICE))

##@ Diagnose
doctor: $(ENVIRONMENT)       ## check which techniques run here, and why others do not; JSON=1
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("doctor: $(PYTHON) is older than 3.11; set PYTHON to a newer one")'
	@$(PYTHON) -m Utils.commands.doctor $(FLAGS) $(OF_BASE) $(if $(filter-out 0,$(strip $(JSON))),--json)

forecast: $(ENVIRONMENT)     ## memory and time before running; DEVICE=h100, DEVICE=all TOKENS=1e10, AGAINST=published
	@$(PYTHON) -m Utils.commands.forecast $(if $(filter-out all,$(T)),$(strip $(T)),ladder) $(FLAGS) \
	    $(call flag,memory,$(MEMORY)) $(call flag,tokens,$(TOKENS)) $(call flag,prices,$(PRICES)) \
	    $(call flag,against,$(AGAINST)) $(if $(filter 1,$(WRITE)),--write) $(OF_BASE)

expectations: $(ENVIRONMENT) ## write docs/forecast.csv, its chart and docs/hours.csv: what to expect of GPUs that are not here
	@$(PYTHON) -m Utils.commands.expectations

profile: $(ENVIRONMENT)      ## time of a step by kind of work, with advice; T=NAME or T=all, CPU=1, MEMORY=1
	@$(PYTHON) -m Utils.commands.profile '$(strip $(T))' $(FLAGS) $(BUCKETS) $(PREFIX) $(if $(filter 1,$(CPU)),--cpu) \
	    $(if $(filter 1,$(MEMORY)),--memory) $(call flag,gpus,$(GPUS))

##@ Read results
plots: $(ENVIRONMENT)        ## draw the charts into plots/, and the loss curves of training runs
	@$(PYTHON) plot_results.py $(SELECTION) $(PREFIX)
	@if [ -d training ]; then $(PYTHON) -m pretraining.curves; fi

table: $(ENVIRONMENT)        ## print the results as Markdown tables; PRICE=2.50 adds cost
	@$(PYTHON) -m Utils.commands.table $(SELECTION) $(call flag,price,$(PRICE))

readme: $(ENVIRONMENT)       ## write the generated parts of README.md and docs/
	@$(PYTHON) -m Utils.commands.readme $(SELECTION)

diff: $(ENVIRONMENT)         ## show a script's diff against its parent; T=flash_attention
	@$(PYTHON) -m Utils.commands.diff diff '$(strip $(T))' '$(strip $(WITHOUT))'

compare: $(ENVIRONMENT)      ## compare two devices, torch versions or commits; A=results.csv:2.11 B=results.csv:2.13
	@$(PYTHON) -m Utils.commands.compare '$(strip $(A))' '$(strip $(B))' $(PREFIX)

report: $(ENVIRONMENT)       ## write all results to one HTML page, report.html; A= and B= add a comparison
	@$(PYTHON) -m Utils.commands.report $(SELECTION) $(call flag,price,$(PRICE)) $(call flag,report,$(REPORT)) \
	    $(call flag,a,$(A)) $(call flag,b,$(B))

recipe: $(ENVIRONMENT)       ## find the fewest techniques that are as fast as the fastest: list, script, lines to copy
	@$(PYTHON) -m Utils.commands.recipe $(SELECTION) $(call flag,recipe,$(RECIPE)) $(call flag,run,$(RUN)) \
	    $(call flag,rounds,$(ROUNDS)) $(call flag,device,$(DEVICE)) $(call flag,seed,$(SEED)) \
	    $(call flag,timeout,$(TIMEOUT))

##@ Train
train: $(ENVIRONMENT)        ## pretrain a model and keep it, with the recipe's techniques; RESUME=1, PLOT=1, GPUS=8
	@$(PYTHON) $(if $(strip $(GPUS)),-m torch.distributed.run --standalone --nproc-per-node=$(strip $(GPUS))) \
	    -m pretraining.train $(TRAINING)

##@ Share
submit: $(ENVIRONMENT)       ## pack rows, records and charts into one file for a pull request, without names
	@$(PYTHON) -m Utils.commands.submit $(if $(strip $(CHECK)),check '$(strip $(CHECK))',make) $(SELECTION)

field-report: $(ENVIRONMENT) ## print device, driver, versions and the table, to paste into an issue
	@$(PYTHON) -m Utils.commands.field_report $(SELECTION)

gallery: $(ENVIRONMENT)      ## chart of several devices: the submissions in results/ and your own rows
	@$(PYTHON) -m Utils.commands.gallery $(call flag,results-file,$(RESULTS_FILE)) $(PREFIX)

##@ Housekeeping
init_results: $(ENVIRONMENT) ## create the results file with its header, where there is none
	@$(PYTHON) -m Utils.commands.results init $(call flag,results-file,$(RESULTS_FILE))

reset: $(ENVIRONMENT)        ## start an empty results file and delete plots; the old file is kept under a dated name
	@$(PYTHON) -m Utils.commands.results reset $(call flag,results-file,$(RESULTS_FILE))
	@rm -f plots/*.png plots/*.svg

clean:                       ## delete caches (tokens, compiled kernels); results and .venv stay
	rm -rf .cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

##@ Develop
# The longest files start first, so that the others do not wait for them at the end.
LONGEST = $(addprefix tests/test_,ladder.py suite.py distributed.py run.py variants.py forecast.py \
                             bases.py beyond_kernels.py fused_cross_entropy.py)
TESTS   = $(LONGEST) $(filter-out $(LONGEST),$(wildcard tests/test_*.py))
TIMED   = $(shell grep -l 'mark\.timing' $(TESTS))

# Kernels without vector instructions compile twice as fast, and compiling is most of the test time.
# Bytecode is kept, whatever the environment says: a hundred processes import the same files.
QUICKLY = OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=0 \
          PYTHONDONTWRITEBYTECODE= TORCHINDUCTOR_CACHE_DIR=$(abspath $(or $(CACHE_DIR),.cache))/inductor
# A third of the time tests wait, so that there is work for one process more than there are cores.
WORKERS = $$(($$(getconf _NPROCESSORS_ONLN) + 1))

test: $(CHECKS)              ## run the tests that need no GPU
	@$(QUICKLY) $(PYTHON) -m pytest -m 'not gpu and not timing' -n $(WORKERS) --maxprocesses 4 \
	    --dist loadfile --no-loadscope-reorder $(TESTS); most=$$?; \
	$(PYTHON) -m pytest -m timing $(TIMED); timed=$$?; [ $$most -eq 0 ] && [ $$timed -eq 0 ]

lint: $(CHECKS)              ## run ruff: errors and formatting
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .

gpu-check: $(CHECKS)         ## on a GPU: run its tests and the seven scripts for 20 steps
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("gpu-check: torch sees no CUDA device here")'
	@mkdir -p .cache/gpu-check
	@$(PYTHON) -m pytest -m gpu -p no:cacheprovider tests/test_gpu.py; tests=$$?; \
	$(PYTHON) -m Utils.commands.suite $(FLAGS) --steps 20 --min-seconds 0 --device cuda --rounds 1 \
	    --results-file .cache/gpu-check/results.csv; scripts=$$?; \
	result() { if [ $$1 -eq 0 ]; then echo passed; else echo FAILED; fi; }; \
	echo "gpu-check: GPU tests $$(result $$tests), scripts $$(result $$scripts)"; \
	[ $$tests -eq 0 ] && [ $$scripts -eq 0 ]

virtual-gpu: $(ENVIRONMENT)  ## without a GPU: run the CUDA path on a virtual one, in an environment of 6 GB
	@$(PYTHON) -m tests.virtual_gpu $(call flag,torch,$(TORCH)) $(if $(strip $(MEMORY)),--memory)

help:                        ## print this list
	@awk '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  match($$0, /^[a-zA-Z0-9_-]+:[^=].*## /) { name = $$1; sub(":", "", name); \
	    printf "  %-20s %s\n", name, substr($$0, RSTART + RLENGTH) }' Makefile
	@echo; echo 'Techniques, each a target of its name'
	@python3 -m Utils.commands.diff list
	@awk '/^# Settings/ { print "\nVariables, as in make all ROUNDS=3 STEPS=100" } \
	  match($$0, /^[A-Z_]+ *\?=.*## /) { split($$0, part, / *\?= */); value = part[2]; sub(/ *##.*/, "", value); \
	    printf "  %-24s %s\n", part[1] "=" value, substr($$0, RSTART + RLENGTH) }' Makefile
	@echo; echo 'PYTHON=python3 uses an existing environment; without it, .venv is created.'

.venv/installed: requirements.txt
	@python3 -c 'import sys; sys.version_info >= (3, 11) or sys.exit("python3 is older than 3.11; set PYTHON to a newer one")'
	python3 -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

.venv/installed-test: .venv/installed requirements-test.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-test.txt
	@touch $@

.PHONY: baseline tf32 bf16 flash fused 8bit all beyond everything adopt ablate ddp scaling together smoke ceilings $(TECHNIQUES) \
        doctor forecast expectations profile train plots table readme diff compare report recipe submit \
        field-report gallery \
        init_results reset clean test lint gpu-check virtual-gpu help
