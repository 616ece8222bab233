# One command each for what people do here; docs/development.md lists them.
PYTHON ?= python3
VENV ?= .venv
# The CPU builds with which everything is tested; on a GPU machine set FBGEMM=fbgemm-gpu==1.8.0.
TORCH ?= torch==2.13.0
FBGEMM ?= fbgemm-gpu-cpu==1.8.0

BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*/* src/*)
OUT := out
CMAKE := PATH="$(abspath $(BIN)):$$PATH" cmake
# Else CMake may take another Python than that of the virtual environment.
FOR_PYTHON := -DPython_EXECUTABLE=$(abspath $(BIN))/python

.PHONY: demo test test-full sanitize lint format bench bench-measured clean

$(VENV)/.venv-made:
	$(PYTHON) -m venv $(VENV)
	touch $@

# The planner alone with pictures: no torch.
$(VENV)/.planner: $(VENV)/.venv-made $(SOURCES)
	@echo "installing the planner into $(VENV) (compiles the engine)"
	$(PIP) install scikit-build-core 'pybind11>=3.0,<4' ninja 'cmake>=3.25'
	$(PIP) install --no-build-isolation -e '.[report]'
	touch $@

$(VENV)/.everything: $(VENV)/.planner
	@echo "installing what tests, profiling and pre-training need into $(VENV)"
	$(PIP) install '$(TORCH)'
	$(PIP) install '$(FBGEMM)'
	$(PIP) install --no-build-isolation -e '.[report,pretrain,profile,test,dev]'
	touch $@

demo: $(VENV)/.planner
	mkdir -p $(OUT)
	$(BIN)/neuroshard generate mlperf-dlrm-dcnv2 -o $(OUT)/mlperf-dlrm-dcnv2.json
	$(BIN)/neuroshard plan $(OUT)/mlperf-dlrm-dcnv2.json --devices 8 --memory 80GiB \
	    -o $(OUT)/plan.json --plot $(OUT)/plan.png

test: $(VENV)/.everything
	$(BIN)/python -m pytest

# What is too long or too noisy for every commit.
test-full: $(VENV)/.everything
	$(BIN)/python -m pytest -m "full or not full"
	$(MAKE) sanitize

# The engine's tests with the address and undefined-behaviour sanitizers of GCC, whose libraries have to be
# loaded first. -S leaves out the installed package: the sanitized one takes its place.
SANITIZED := $(abspath build/sanitize/package)
sanitize: $(VENV)/.everything
	$(CMAKE) --preset sanitize $(FOR_PYTHON) --log-level=WARNING
	$(CMAKE) --build --preset sanitize
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -r python/neuroshard_fast $(SANITIZED)
	$(CMAKE) --install build/sanitize --prefix $(SANITIZED)
	PYTHONPATH=$(SANITIZED):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/python -S -m pytest tests/test_engine.py tests/test_engine_reference.py

lint: $(VENV)/.everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.hpp')
	$(CMAKE) --preset default --log-level=WARNING
	$(CMAKE) --build --preset default
	$(CMAKE) --preset tidy $(FOR_PYTHON) --log-level=WARNING
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/run-clang-tidy.py -quiet -p build/tidy -j 2 'csrc/|src/' >build/tidy/report.txt 2>&1 \
	    || { cat build/tidy/report.txt; exit 1; }

format: $(VENV)/.everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.hpp')

# Planning time of the engine alone, no Python in the process.
bench: $(VENV)/.planner
	$(CMAKE) --preset default --log-level=WARNING
	$(CMAKE) --build --preset default
	for size in "50 4" "200 16" "1000 128"; do \
	    set -- $$size; build/default/neuroshard-bench --tables $$1 --devices $$2 --repeat 3 || exit 1; \
	done

# Plans of every algorithm measured for real on this machine's CPU; takes about 20 minutes.
bench-measured: $(VENV)/.everything
	mkdir -p $(OUT)
	$(BIN)/python benchmarks/measured_plans.py -o $(OUT)/measured-plans.json

clean:
	rm -rf build $(OUT)
