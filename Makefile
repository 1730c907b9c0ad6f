# From a bare checkout: `make demo` trains and shows the model, `make test` checks what takes minutes, `make test-all` everything
# (deployments of real processes, notebooks, benchmarks), `make test-portable` the fast tests as other processors run them,
# `make docs` builds the site. All set themselves up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
SLIM   := $(VENV)/demo
EXTRAS := serve,text

.PHONY: demo test test-all test-portable lint types docs notebooks benchmark clean

demo: $(SLIM)
	rm -rf runs/demo
	$(BIN)/fedunseen run digit-pairs-gaussian --out runs/demo/closed-form
	$(BIN)/fedunseen run digit-pairs --out runs/demo/trained
	$(BIN)/fedunseen predict runs/demo/closed-form examples/digit-pairs/*.png --among unseen --top 3
	@echo
	@echo "Draw digits yourself, and add a class: $(BIN)/fedunseen serve runs/demo/closed-form"
	@echo "Open in a browser: $(CURDIR)/runs/demo/closed-form/report.html"

# Two processes on two cores: threads within them would only wait for each other.
TESTS := $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(TESTS) -m "not slow"

test-all: $(STAMP) lint types
	OMP_NUM_THREADS=1 $(TESTS)

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
pip := $(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
uv  := UV_HTTP_RETRIES=0 $(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend=auto -c constraints.txt
define install
	$(PYTHON) -m venv --clear $(VENV)
	$(pip) uv
	$(uv) -e '.[$(1)]' 2> $(VENV)/uv.log || $(pip) -e '.[$(1)]'
endef

# Made anew when the dependencies change. The demo's also trains on photos and serves a model; the tests need all.
$(SLIM): pyproject.toml constraints.txt
	$(call install,$(EXTRAS))
	touch $@

# Compiled by both cores at once: hundreds of processes of the tests would each do it again where PYTHONDONTWRITEBYTECODE is set.
# Some packages carry templates that do not compile.
$(STAMP): pyproject.toml constraints.txt
	$(call install,dev)
	$(BIN)/python -m compileall -q -j 0 $(VENV)/lib src > $(VENV)/compile.log || true
	touch $@ $(SLIM)

clean:
	rm -rf $(VENV) runs build dist
