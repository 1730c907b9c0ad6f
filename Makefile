# From a bare checkout: `make demo` trains and shows the model, `make test` checks what takes minutes, `make test-all` everything
# (deployments of real processes, notebooks, benchmarks) but Flower, `make test-flower` that, `make test-portable` the fast tests as
# other processors run them, `make docs` builds the site. All set themselves up.
PYTHON ?= python3
VENV   ?= .venv
EXTRAS := serve,text

# The tests need more than the demo. Where `make demo` has made $(VENV), they get an environment beside it, so that what
# a user works with is never removed. An environment of the tests does for the demo, too.
SLIM  := $(VENV)/demo
WHOLE := $(VENV)$(if $(wildcard $(VENV)/installed),,$(if $(wildcard $(SLIM)),-tests))
STAMP := $(WHOLE)/installed
BIN   := $(WHOLE)/bin
RUN   := $(VENV)/bin/fedunseen

# Flower wants old versions of common packages: it has an environment and a list of versions of its own, with the oldest Flower that
# we allow. FLOWER=newest takes the newest below the upper bound of pyproject.toml, and runs its deployment alone.
FLOWER      ?= oldest
FOR_FLOWER  := '.[flower,masked,privacy]' hypothesis pytest pytest-xdist
WITH_FLOWER := $(VENV)-flower$(if $(filter newest,$(FLOWER)),-newest)
.PHONY: demo test test-all test-flower test-portable lint types docs notebooks benchmark clean

demo: $(if $(wildcard $(VENV)/installed),$(STAMP),$(SLIM))
	rm -rf runs/demo
	$(RUN) run digit-pairs-gaussian --out runs/demo/closed-form
	$(RUN) run digit-pairs --out runs/demo/trained
	$(RUN) predict runs/demo/closed-form examples/digit-pairs/*.png --among unseen --top 3
	@echo
	@echo "Draw digits yourself, and add a class: $(RUN) serve runs/demo/closed-form"
	@echo "Open in a browser: $(CURDIR)/runs/demo/closed-form/report.html"

# Two processes on two cores: threads within them would only wait for each other. Both write the bytecode of tests, which pytest
# compiles with its own assertions: a second run saves nine seconds of each.
TESTS := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(TESTS) -m "not slow"

test-all: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(TESTS)

# Each file whose tests need Flower.
OF_FLOWER := tests/attacks/test_flower_nodes.py tests/attacks/test_noninterference.py tests/attacks/test_other_federations.py \
	tests/cli/test_recorded_commands.py tests/engines/test_all_ways.py tests/engines/test_flower_app.py tests/engines/test_look_ways.py
DEPLOYED  := tests/engines/test_flower_app.py::test_a_closed_form_ends_with_the_sums_of_one_process

test-flower: $(WITH_FLOWER)/installed
	OMP_NUM_THREADS=1 $(WITH_FLOWER)/bin/python -m pytest -q -n 2 --dist loadfile -k flower \
		$(if $(filter newest,$(FLOWER)),$(DEPLOYED),$(OF_FLOWER))

# PyTorch, OpenBLAS, MKL and oneDNN as on an old processor, one with AVX2, one with AVX-512 where this is one; two threads.
cpu = ATEN_CPU_CAPABILITY=$(1) OPENBLAS_CORETYPE=$(2) MKL_CBWR=$(3) ONEDNN_MAX_CPU_ISA=$(4) OMP_NUM_THREADS=1 $(TESTS)

test-portable: $(STAMP)
	$(call cpu,default,Nehalem,COMPATIBLE,SSE41) -m "not slow"
	$(call cpu,avx2,Haswell,AVX2,AVX2) -m "not slow"
	! grep -qs avx512f /proc/cpuinfo || $(call cpu,avx512,SkylakeX,AVX512,AVX512_CORE) -m "not slow"
	OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive $(TESTS) -m "not slow"

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy --num-workers 2

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open build/site/index.html in a browser."

# Runs the tutorials again and keeps what they print; a test says when that is needed.
notebooks: $(STAMP)
	$(BIN)/python docs/site/notebooks.py docs/tutorials/*.ipynb

benchmark: $(STAMP)
	$(BIN)/python benchmarks/speed/trainer.py

# uv chooses the build of PyTorch for this machine, without CUDA where there is no GPU. Where PyTorch's own index cannot be
# reached, pip takes the build that it finds.
pip = $(1)/bin/pip install --quiet --no-compile --disable-pip-version-check -c $(2)
uv  = UV_HTTP_RETRIES=0 $(1)/bin/uv pip install --quiet --python $(1)/bin/python --torch-backend=auto -c $(2)
# $(1): the environment, $(2): what to install, $(3): the list of versions.
define install
	$(PYTHON) -m venv --clear $(1)
	$(call pip,$(1),$(3)) uv
	$(call uv,$(1),$(3)) -e $(2) 2> $(1)/uv.log || $(call pip,$(1),$(3)) -e $(2)
endef

# Made anew when the dependencies change. The demo's also trains on photos and serves a model; the tests need all.
$(SLIM): pyproject.toml constraints.txt
	$(call install,$(VENV),'.[$(EXTRAS)]',constraints.txt)
	touch $@

# Compiled by both cores at once: hundreds of processes of the tests would each do it again where PYTHONDONTWRITEBYTECODE is set.
# Some packages carry templates that do not compile.
$(STAMP): pyproject.toml constraints.txt
	$(call install,$(WHOLE),'.[dev]',constraints.txt)
	$(BIN)/python -m compileall -q -j 0 $(WHOLE)/lib src > $(WHOLE)/compile.log || true
	touch $@

# What decides on bits stays as it is with the newest Flower.
$(VENV)-flower/installed: pyproject.toml constraints-flower.txt
	$(call install,$(@D),$(FOR_FLOWER),constraints-flower.txt)
	touch $@

$(VENV)-flower-newest/installed: pyproject.toml constraints-flower.txt
	mkdir -p build
	grep -E '^(numpy|pytest|scikit-learn|scipy|torch)==' constraints-flower.txt > build/constraints-flower-newest.txt
	$(call install,$(@D),$(FOR_FLOWER),build/constraints-flower-newest.txt)
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-tests $(VENV)-flower $(VENV)-flower-newest runs build dist
