# From a bare checkout: `make demo` trains and shows the model, `make test` checks everything. Both set themselves up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed

.PHONY: demo test lint types check benchmark clean

demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/fedunseen run digit-pairs --out runs/demo --json
	$(BIN)/fedunseen predict runs/demo examples/digit-pairs/*.png --among unseen --top 3
	@echo
	@echo "Open runs/demo/report.html in a browser."

test: $(STAMP) lint types
	$(BIN)/python -m pytest -q -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

benchmark: $(STAMP)
	$(BIN)/python benchmarks/trainer.py

# Made anew when the dependencies change.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build dist
