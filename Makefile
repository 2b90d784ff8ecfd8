# `make` alone says where to start. Scripts never run at once, whatever -j says: they share the device.
.NOTPARALLEL:
.DEFAULT_GOAL := start
MAKEFLAGS += --no-print-directory
# Under another name, as a recipe line that names MAKE runs even with `make -n`.
SELF := $(MAKE)

# Settings given as in `make all STEPS=20` are passed on in quotes; Utils/base/settings.toml has all.
GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
quoted = '$(subst ','\'',$(1))'
SET   = $(foreach name,$(GIVEN),$(name)=$(call quoted,$(value $(name))))
given = $(if $(filter $(1),$(GIVEN)),$($(1)))

# The command of a target that the user names reports variables without effect, but for those USED.
export USED := $(if $(filter 01,$(MAKELEVEL)$(words $(MAKECMDGOALS))),PYTHON)

# Inductor quotes no path: if this folder's needs quotes, .venv is a link to an environment elsewhere.
PLAIN = A-Za-z0-9_@%+=:,./-
VENV := $(shell case "`pwd`" in (*[!$(PLAIN)]*) echo /var/tmp/venv-`id -u`-`pwd | cksum | cut -d' ' -f1`;; (*) echo .venv;; esac)

# PYTHON=python3 uses that environment as it is; without it, one is made of requirements.txt here.
ifeq ($(origin PYTHON),undefined)
PYTHON      := $(VENV)/bin/python
ENVIRONMENT := $(VENV)/installed
CHECKS      := $(VENV)/installed-test
endif
COMMAND = $(PYTHON) -m Utils.commands
TOOL    = $(PYTHON) -m tools

# A technique is a script whose docstring names its parent; there is no list to edit.
SCRIPTS    := $(shell grep -rl --include='*.py' '^Parent: ' *.py beyond 2>/dev/null | grep -v '[:;]')
TECHNIQUES := $(basename $(notdir $(SCRIPTS)))
SCRIPT_OF   = $(filter $@.py %/$@.py,$(SCRIPTS))

##@ Short names
baseline: no_optimization    ## plain float32, the reference for all ratios
tf32: tensorFloat32          ## + float32 matrix products on tensor cores
bf16: brainFloat16           ## + bfloat16 autocast
flash: flash_attention       ## + torch.compile and FlashAttention
fused: fused_optimizer       ## + fused AdamW
8bit: 8bit_optimizer         ## flash_attention with 8-bit AdamW

##@ Run
all:                         ## run the seven scripts, print a table, draw charts; T="no_optimization my_idea"
beyond:                      ## run the scripts of beyond/, the baseline and their parents
everything:                  ## run all techniques
SUITES := all beyond everything
$(SUITES): USED += DEVICE_NAME PLOTSPREFIX
$(SUITES): $(ENVIRONMENT)
	@$(COMMAND) suite $(@:all=ladder) --announced $(SET); status=$$?; \
	if [ $$status -le 1 ]; then $(SELF) plots || status=1; fi; exit $$status

adopt:                       ## inspect a script of your own: its step, its switches, its waits; SCRIPT=train.py
ablate:                      ## measure each technique alone, and the last script without it; table and chart
ddp:                         ## run a script on several GPUs, or on CPU cores with DEVICE=cpu; GPUS=4 T=fully_sharded
peers:                       ## measure other people's training loops, unchanged, in turns with ours; PEERS=~/src
pair:                        ## compare two commits, torch versions or environments in turns; A=main B=HEAD T=all
rented:                      ## measure the most useful first on a GPU for MINUTES=25, in pieces; PEERS=~/src DRY=1

smoke: $(ENVIRONMENT)        ## run the seven on a tiny model, in 1 to 3 min; results.csv is not touched
	@mkdir -p .cache/smoke; TORCHINDUCTOR_VEC_ISA_OK=0 $(COMMAND) suite BATCH_SIZE=4 SEQ_LEN=128 DATASET=synthetic \
	    $(SET) --model=gpt2-tiny --steps=5 --warmup=3 --rounds=1 --results-file=.cache/smoke/results.csv --t= && \
	    echo 'next: make all'

$(TECHNIQUES): $(ENVIRONMENT)
	@$(PYTHON) $(if $(findstring /,$(SCRIPT_OF)),-m $(subst /,.,$(SCRIPT_OF:.py=)),$(SCRIPT_OF)) $(SET) && echo "next: make table"

train: USED += GPUS
train: $(ENVIRONMENT)        ## pretrain a model and keep it, with the recipe's techniques; RESUME=1 GPUS=8
	@case $(call quoted,$(value GPUS)) in (*[!0-9]*) echo 'train: error: GPUS is not a whole number' >&2; exit 2;; esac; \
	$(PYTHON) $(if $(call given,GPUS),-m torch.distributed.run --standalone --nproc-per-node=$(GPUS)) -m pretraining.train $(SET)

ceilings:                    ## measure peak matrix-product rate and memory bandwidth of this device, once

##@ Diagnose
doctor:                      ## check which techniques run here, and why others do not; JSON=1
forecast:                    ## forecast memory and time before running; DEVICE=h100, MEMORY=24GiB
profile:                     ## split the time of a step by kind of work; T=NAME, BASE=

##@ Read results
plots: $(ENVIRONMENT)        ## draw the charts into plots/, and the loss curves of training runs
	@$(PYTHON) plot_results.py $(SET)
	@if [ -d training ]; then $(PYTHON) -m pretraining.curves; fi
table:                       ## print the results; ALL=1 prints all columns, PRICE=2.50 adds cost
diff:                        ## show a script's diff against its parent; T=flash_attention
compare:                     ## compare devices, torch versions or commits; A=results.csv:2.11 B=results.csv:2.13
report:                      ## write all results to one HTML page, report.html
recipe:                      ## find the set with the largest certain speedup, and the lines to copy

##@ Share
submit:                      ## write rows, records and charts to results/ for a pull request, without names
field-report:                ## print device, driver, versions and the table, to paste into an issue
site:                        ## write site/, a page to choose a GPU on, from results/ and docs/

##@ Housekeeping
init_results:                ## create the results file with its header, if there is none
reset:                       ## start an empty results file, delete charts; the old file is kept, with a dated name
clean:                       ## delete caches (tokens, compiled kernels); results and .venv stay
	rm -rf .cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# Each is a file of Utils/commands/.
SIMPLE := ablate ddp ceilings table diff compare report recipe init_results reset
$(SIMPLE): $(ENVIRONMENT)
	@$(COMMAND) $@ $(SET)

# Each is a module of tools/, of the same name but for those of MODULES.
TOOLS := doctor forecast profile site adopt pair peers rented readme submit field-report virtual-gpu
MODULES := adopt=own_script readme=docs virtual-gpu=virtual_gpu \
           submit=share field-report=share.field_report
$(TOOLS): $(ENVIRONMENT)
	@$(TOOL).$(or $(patsubst $@=%,%,$(filter $@=%,$(MODULES))),$@) $(SET)

##@ Maintain
readme:                      ## write the generated parts of README.md and docs/, and docs/gpus.png
virtual-gpu:                 ## run the CUDA path without a GPU, on a virtual one, in an environment of 6 GB
# On a CPU 1,024 tokens a step, for attention; four sequences, as two scripts divide them. No T: --t=.
BEST    = from Utils.device.device_choice import choose; print(choose("auto").torch_device.type)
ON_CPU  = $(filter cpu,$(or $(call given,DEVICE),$(shell $(PYTHON) -c '$(BEST)')))
LARGER  = $(if $(ON_CPU),BATCH_SIZE=4 SEQ_LEN=256 STEPS=13 WARMUP=3)
SMALLER = $(if $(ON_CPU),BATCH_SIZE=4 SEQ_LEN=64 STEPS=20)
part    = $(if $(filter $(1),$(or $(call given,PART),$(1))),\
            $(COMMAND) suite $(1) --announced ROUNDS=4 $(2) $(SET) --t= || [ $$? -eq 1 ])
reference: USED += PART DEVICE_NAME
reference: $(ENVIRONMENT)    ## repeat the reference results, with charts and pages; resumes; PART=ladder
	@test -z "$$(git status --porcelain -- '*.py')" || \
	    { echo 'reference: error: the tree has uncommitted changes; commit them: rows name their commit' >&2; exit 2; }
	@$(call part,ladder,$(LARGER))
	@$(call part,ablation,ROUND=4 $(LARGER))
	@$(call part,beyond,$(SMALLER))
	@$(TOOL).share $(SET)
	@$(SELF) readme

gpu-check: $(CHECKS)         ## run on a GPU its tests, the seven scripts, a profile, and the forecast beside the times
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("gpu-check: torch sees no CUDA device here")'
	@mkdir -p .cache/gpu-check; $(PYTHON) -m pytest -m gpu -p no:cacheprovider tests/test_gpu.py; tests=$$?; \
	set -- $(SET) --steps=20 --min-seconds=0 --device=cuda --rounds=1 --results-file=.cache/gpu-check/results.csv; \
	$(COMMAND) suite "$$@" --t=; scripts=$$?; \
	$(TOOL).profile T=fused_optimizer "$$@" && $(TOOL).forecast "$$@" || scripts=1; \
	result() { if [ $$1 -eq 0 ]; then echo passed; else echo FAILED; fi; }; \
	echo "gpu-check: GPU tests $$(result $$tests), scripts $$(result $$scripts)"; \
	[ $$tests -eq 0 ] && [ $$scripts -eq 0 ]

##@ Develop
# The longest files start first, so that the others do not wait for them at the end.
FOUND   = $(shell find tests -name 'test_*.py' | sort)
LONGEST = $(foreach name,contribution ladder suite distributed run script_patch forecast own_script own_suite \
                         rented beyond fused_cross_entropy,$(filter %/test_$(name).py,$(FOUND)))
TESTS   = $(LONGEST) $(filter-out $(LONGEST),$(FOUND))
TIMED   = $(shell grep -l 'mark\.timing' $(TESTS))

# Kernels without vector instructions compile twice as fast, and compiling is most of the test time.
# Bytecode is kept, whatever the environment says: a hundred processes import the same files.
QUICKLY = OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 TORCHINDUCTOR_VEC_ISA_OK=0 PYTHONDONTWRITEBYTECODE=
# Tests wait a third of the time, so there is work for one process more than there are cores.
WORKERS = $$(($$(getconf _NPROCESSORS_ONLN) + 1))
# CI prints the slowest tests and the warnings; on a screen they would hide what failed.
PRINTED = $(if $(CI),--durations=20,--quiet --disable-warnings)
PYTEST  = $(QUICKLY) $(PYTHON) -m pytest $(PRINTED) -n $(WORKERS) --maxprocesses 4 \
              --dist loadfile --no-loadscope-reorder

test: $(CHECKS)              ## run the fast tests, in minutes; none needs a GPU
	@$(PYTEST) -m 'not gpu and not timing and not slow' $(TESTS)
	@echo 'next: make test-all adds the slow ones: compilers, processes, browsers, timing'

test-all: $(CHECKS)          ## run all tests that need no GPU, as CI does
	@$(PYTEST) -m 'not gpu and not timing' $(TESTS); most=$$?; \
	$(PYTHON) -m pytest $(PRINTED) -m timing $(TIMED); timed=$$?; \
	[ $$most -eq 0 ] && [ $$timed -eq 0 ]

lint: $(CHECKS)              ## run ruff, import-linter and the limits of pages
	@$(PYTHON) -m ruff check . && $(PYTHON) -m ruff format --check .
	@$(PYTHON) .ci/check_pages.py $$(git ls-files '*.md')
	@$(PYTHON) -c 'from importlinter.cli import lint_imports_command as main; main()' --no-logo --cache-dir .cache/import_linter

HELP = $(if $(ENVIRONMENT),$(or $(wildcard $(PYTHON)),python3),$(PYTHON)) -m Utils.commands help
start: ; @$(HELP)
help:                        ## list commands, techniques and variables; T=all: a line on each
	@$(HELP) --all $(SET)
# A folder's name is no target either, though make would find it up to date.
FOLDERS := $(filter-out $(SUITES) $(TOOLS) plots,$(patsubst %/,%,$(shell ls -d */ 2>/dev/null | grep -v '[:;]')))
.DEFAULT $(FOLDERS):
	@$(HELP) --target=$(call quoted,$@)
# On a terminal pip shows what it downloads, and how far.
PIP     = $(VENV)/bin/python -m pip install $$([ -t 1 ] || echo --quiet) --disable-pip-version-check
INSTALL = echo "installing $(lastword $^) into $(VENV)"; $(PIP) -r $(lastword $^)
$(VENV)/installed: requirements.txt
	@python3 -c 'import sys; sys.version_info >= (3, 11) or sys.exit("python3 is older than 3.11; set PYTHON to a newer one")'
	@said=$$(python3 -m venv $(VENV) 2>&1) || { \
	case $$said in (*ensurepip*) said='python3 has no ensurepip; install python3-venv, or use its own packages: PYTHON=python3';; esac; \
	echo "$$said" >&2; exit 1; }
	@$(INSTALL)
	@[ -e .venv ] || ln -s $(VENV) .venv; touch $@
$(VENV)/installed-test: $(VENV)/installed requirements-test.txt
	@$(INSTALL) && touch $@

.PHONY: baseline tf32 bf16 flash fused 8bit $(SUITES) $(TECHNIQUES) $(SIMPLE) $(TOOLS) reference smoke plots \
        train clean test test-all lint gpu-check help start $(FOLDERS)
