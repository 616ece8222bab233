# One command each for what people do here; docs/development.md lists them.
PYTHON ?= python3
VENV ?= .venv
# The CPU builds with which everything is tested; on a GPU machine set FBGEMM=fbgemm-gpu==1.8.0.
TORCH ?= torch==2.13.0
FBGEMM ?= fbgemm-gpu-cpu==1.8.0
TORCHREC ?= torchrec==1.8.0

BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check -q
SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/*/* csrc/*/*/* src/*)
OUT := out
CMAKE := PATH="$(abspath $(BIN)):$$PATH" cmake
# Else CMake may take another Python than that of the virtual environment.
FOR_PYTHON := -DPython_EXECUTABLE=$(abspath $(BIN))/python

.PHONY: demo test test-full captures sanitize fuzz check-aarch64 lint format bench bench-scaling bench-measured \
    bench-torchrec clean

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
	$(PIP) install --no-build-isolation -e '.[report,pretrain,profile,torchrec-cpu,test,dev]'
	$(PIP) install --no-deps '$(TORCHREC)'  # by itself it takes the CUDA build of FBGEMM
	touch $@

demo: $(VENV)/.planner
	mkdir -p $(OUT)
	$(BIN)/neuroshard generate mlperf-dlrm-dcnv2 -o $(OUT)/mlperf-dlrm-dcnv2.json
	$(BIN)/neuroshard plan $(OUT)/mlperf-dlrm-dcnv2.json --devices 8 --memory 80GiB \
	    -o $(OUT)/plan.json --plot $(OUT)/plan.png

test: $(VENV)/.everything
	$(MAKE) fuzz FUZZ_SECONDS=2
	$(BIN)/python -m pytest

# What is too long or too noisy for every commit.
test-full: $(VENV)/.everything
	$(BIN)/python -m pytest -m "full or not full"
	$(MAKE) sanitize

# Golden tasks for the programs that plan without Python.
CAPTURES := build/captures
captures: $(VENV)/.everything
	$(BIN)/python tests/golden_captures.py $(CAPTURES)

# Engine and programs with the sanitizers of GCC: addresses and undefined behaviour, then threads. For the
# engine's tests Python has to load the sanitizer's library first; -S leaves out the installed package: the
# sanitized one takes its place.
SANITIZED := $(abspath build/sanitize/package)
sanitize: captures
	for preset in sanitize sanitize-threads; do \
	    $(CMAKE) --preset $$preset $(FOR_PYTHON) --log-level=WARNING && \
	    $(CMAKE) --build --preset $$preset && \
	    build/$$preset/neuroshard-bench $(CAPTURES)/195x16.capture --verify --threads 4 --repeat 2 && \
	    build/$$preset/concurrent_searches $(CAPTURES)/51x4.capture $(CAPTURES)/195x16.capture && \
	    build/$$preset/worker_rounds || exit 1; \
	done
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	cp -r python/neuroshard_fast $(SANITIZED)
	$(CMAKE) --install build/sanitize --prefix $(SANITIZED)
	PYTHONPATH=$(SANITIZED):$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	    LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	    ASAN_OPTIONS=detect_leaks=0 \
	    $(BIN)/python -S -m pytest tests/test_engine.py tests/test_engine_reference.py tests/test_isas.py

# Mutated files for the readers of captures and of cost models, until nothing is found for so long.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.everything
	$(CMAKE) --preset fuzz --log-level=WARNING
	$(CMAKE) --build --preset fuzz
	build/fuzz/fuzz_capture -max_total_time=$(FUZZ_SECONDS)
	$(BIN)/python fuzz/fuzz_cost_models.py --seconds $(FUZZ_SECONDS)

# The same plans on 64-bit Arm, emulated.
check-aarch64: captures
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { \
	    echo "check-aarch64 needs Debian's packages g++-aarch64-linux-gnu and qemu-user" >&2; exit 1; }
	$(CMAKE) --preset aarch64 --log-level=WARNING
	$(CMAKE) --build --preset aarch64
	for size in 51x4 195x16; do \
	    qemu-aarch64 -L /usr/aarch64-linux-gnu build/aarch64/neuroshard-bench $(CAPTURES)/$$size.capture \
	        --verify --threads 2 --repeat 1 || exit 1; \
	done

lint: $(VENV)/.everything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.hpp' '*.inl')
	$(CMAKE) --preset default --log-level=WARNING
	$(CMAKE) --build --preset default
	$(CMAKE) --preset tidy $(FOR_PYTHON) --log-level=WARNING
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/run-clang-tidy.py -quiet -p build/tidy -j 2 >build/tidy/report.txt 2>&1 \
	    || { cat build/tidy/report.txt; exit 1; }

format: $(VENV)/.everything
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.hpp' '*.inl')

# Planning time here and with others, about three minutes; BENCH_OPTIONS=--full adds what takes four more.
bench: $(VENV)/.everything
	mkdir -p $(OUT)
	PYTHONPATH=tests $(BIN)/python benchmarks/planning_time.py -o $(OUT)/planning-time.json $(BENCH_OPTIONS)

# Planning time over numbers of tables and devices, about two minutes.
bench-scaling: $(VENV)/.everything
	mkdir -p $(OUT)
	PYTHONPATH=tests $(BIN)/python benchmarks/scaling.py -o $(OUT)/scaling.json --plot $(OUT)/planning-scaling.png

# Plans of every algorithm measured for real on this machine's CPU; takes about 20 minutes.
bench-measured: $(VENV)/.everything
	mkdir -p $(OUT)
	$(BIN)/python benchmarks/measured_plans.py -o $(OUT)/measured-plans.json

# Against TorchRec's planner: planning times and costs, then steps trained on this machine's CPU, then what
# collecting statistics costs.
bench-torchrec: $(VENV)/.everything
	mkdir -p $(OUT)
	$(BIN)/python benchmarks/torchrec_planners.py -o $(OUT)/torchrec-planners.json
	$(BIN)/python benchmarks/torchrec_steps.py -o $(OUT)/torchrec-steps.json
	$(BIN)/python benchmarks/torchrec_stats.py -o $(OUT)/torchrec-stats.json

clean:
	rm -rf build $(OUT)
