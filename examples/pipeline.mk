# From pictures to a table and a figure: features → a head for each method and each ε → figures of each → all together.
#
#   make -f examples/pipeline.mk -j2
#   make -f examples/pipeline.mk DATASET=imagefolder:wards NAME=wards CAP=4 \
#     EXTRACT='--image-size 64 --classes flu,cold --population wards'
#
# Every step is a file, so a second run makes only what is missing. Kill it whenever you like: no file is ever half
# written, and a stopped training resumes without a new charge. All heads are of the same people, so they cost
# more together than each: $(OUT)/budget.txt says how much, and CAP sets a limit before the first one.
# How it works: docs/pipelines.md. The same for Snakemake: examples/Snakefile.

DPFC ?= dpfc
OUT ?= pipeline
DATASET ?= digits
MODEL ?= scattering
# More options for 'dpfc extract'.
EXTRACT ?=
# What the feature set is called.
NAME ?= $(DATASET)-$(MODEL)
METHODS ?= dp-whitened dp-ls
EPSILONS ?= 0.25 0.5 1 2 4 8
# The most that all heads together may spend; empty: no limit is set.
CAP ?=
# Why, for the ledger.
PURPOSE ?= accuracy against epsilon

export DPFC_FEATURES := $(OUT)/features
export DPFC_HEADS := $(OUT)/heads

set := $(OUT)/features/$(NAME)/manifest.json
runs := $(foreach method,$(METHODS),$(foreach epsilon,$(EPSILONS),$(method)-eps$(epsilon)))
heads := $(runs:%=$(OUT)/heads/%.safetensors)
metrics := $(runs:%=$(OUT)/metrics/%.csv)

all: $(OUT)/accuracy.csv $(OUT)/accuracy.svg $(OUT)/budget.txt
.PHONY: all
.DEFAULT_GOAL := all
# make removes what it was making when it is stopped. dpfc names its files when they are whole, and a head was paid for.
.PRECIOUS: $(set) $(heads)
.SUFFIXES:

$(set):
	@mkdir -p $(OUT)/features
	$(DPFC) -q extract $(DATASET) --model $(MODEL) $(EXTRACT) --out $(NAME)

# With a cap, the trainings wait for it.
ready := $(set)
ifneq ($(CAP),)
ready := $(OUT)/cap-$(CAP).json
$(OUT)/cap-$(CAP).json: | $(set)
	$(DPFC) -q cap $(CAP) --features $(NAME) --note "$(PURPOSE)" --json > $@.tmp
	mv $@.tmp $@
endif

# 'order-only' (|): a head that is there is never trained again because something else is newer. That would be charged.
define of_method
$(OUT)/heads/$(1)-eps%.safetensors: | $$(ready)
	@mkdir -p $(OUT)/heads
	$$(DPFC) -q train --features $$(NAME) --method $(1) --epsilon $$* --purpose "$$(PURPOSE)" --out $$@ > /dev/null
endef
$(foreach method,$(METHODS),$(eval $(call of_method,$(method))))

$(OUT)/metrics/%.csv: $(OUT)/heads/%.safetensors
	@mkdir -p $(OUT)/metrics
	$(DPFC) -q evaluate $< --features $(NAME) --csv > $@.tmp
	mv $@.tmp $@

# The first line of the first file, and all other lines but the first of each.
$(OUT)/accuracy.csv: $(metrics)
	awk 'FNR > 1 || NR == 1' $^ > $@.tmp
	mv $@.tmp $@

# dpfc writes the figure as a whole.
$(OUT)/accuracy.svg: $(heads)
	$(DPFC) -q evaluate $^ --features $(NAME) --plot $@ > /dev/null

$(OUT)/budget.txt: $(heads)
	$(DPFC) -q budget --features $(NAME) --full > $@.tmp
	mv $@.tmp $@
