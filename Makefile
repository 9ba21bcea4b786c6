# SPDX-License-Identifier: MIT
# memplan: library, command and tests. `make help` lists the targets, V=1 shows the commands.
#
# Objects live in build/VARIANT/, so that `make` and `make SANITIZE=address,undefined` do not disturb each
# other. CC CFLAGS CPPFLAGS LDFLAGS LDLIBS belong to the user; MP_* are ours and stand before them.

CFLAGS ?= -O2 -g
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
INSTALL ?= install
PKG_CONFIG ?= pkg-config
CLANG ?= clang
CUDA_HOME ?= /usr/local/cuda
FUZZ_SECONDS ?= 5

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
Q := $(if $(filter 1,$(V)),,@)
comma := ,

ifneq ($(SANITIZE),)
VARIANT ?= sanitize-$(subst $(comma),-,$(SANITIZE))
else
VARIANT ?= release
endif
BUILD := build/$(VARIANT)

# --- optional parts: found unless said otherwise; HAVE_X=0 builds without, HAVE_X=1 insists ---

compiles = $(shell printf '\043include <%s>\n' '$(1)' | $(CC) -x c - -o /dev/null $(2) >/dev/null 2>&1 && echo 1 || echo 0)
ifeq ($(filter clean help dist format,$(MAKECMDGOALS)),)
HAVE_GLPK ?= $(call compiles,glpk.h,-c)
HAVE_OPENMP ?= $(call compiles,omp.h,-c -fopenmp)
HAVE_GLPK := $(HAVE_GLPK)
HAVE_OPENMP := $(HAVE_OPENMP)
endif

# --- flags ---

MP_WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes \
	-Wmissing-prototypes -Wvla -Wwrite-strings -Wformat=2 -Wundef $(if $(filter 1,$(WERROR)),-Werror)
MP_SANITIZE := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer)
MP_OPENMP := $(if $(filter 1,$(HAVE_OPENMP)),-fopenmp)
MP_CFLAGS := -std=c11 -fvisibility=hidden $(MP_WARNINGS) $(MP_OPENMP) $(MP_SANITIZE)
MP_CPPFLAGS := -D_POSIX_C_SOURCE=200809L -Isrc -DMP_HAVE_GLPK=$(HAVE_GLPK) \
	$(shell $(PKG_CONFIG) --cflags libcjson yaml-0.1 zlib 2>/dev/null)
MP_LDFLAGS := $(MP_OPENMP) $(MP_SANITIZE)
MP_LDLIBS := $(shell $(PKG_CONFIG) --libs libcjson yaml-0.1 zlib 2>/dev/null || echo -lcjson -lyaml -lz) \
	$(if $(filter 1,$(HAVE_GLPK)),-lglpk) -lm
MP_TEST_CPPFLAGS := -I$(BUILD)/gen -Itests/unit
MP_TEST_LDLIBS = $(shell $(PKG_CONFIG) --libs check)

COMPILE = $(CC) $(MP_CPPFLAGS) $(CPPFLAGS) $(MP_CFLAGS) $(CFLAGS)
LINK = $(CC) $(MP_CFLAGS) $(CFLAGS) $(MP_LDFLAGS) $(LDFLAGS)

# --- files ---

VERSION := $(shell sed -n 's/^ *return "\([0-9][0-9.]*\)";$$/\1/p' src/memplan.c)
LIB_SRCS := $(sort $(filter-out src/main.c src/cli/%,$(wildcard src/*.c src/*/*.c)))
CLI_SRCS := $(sort $(wildcard src/main.c src/cli/*.c))
UNIT_SRCS := $(sort $(wildcard tests/unit/*.c tests/property/*.c))
SUITES_SRCS := $(filter tests/unit/test_% tests/property/test_%,$(UNIT_SRCS))
FUZZ_SRCS := $(sort $(wildcard tests/fuzz/fuzz_*.c))
BENCH_SRCS := $(sort $(wildcard tests/bench/*.c))
SHIPPED := $(sort $(wildcard models/*.json configs/gpus/*.json configs/frameworks/*.json))
ASSETS := $(sort $(wildcard src/report/assets/*))
HEADERS := $(sort $(wildcard src/*.h src/*/*.h))
MAN_PAGES := $(sort $(wildcard docs/man/*.1))
SCRIPTS := $(wildcard .ci/install .ci/run tests/run tests/parallel tests/cases/run tests/compare/run)

LIB_OBJS := $(LIB_SRCS:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/shipped_data.o $(BUILD)/obj/report_assets.o
CLI_OBJS := $(CLI_SRCS:%.c=$(BUILD)/obj/%.o)
UNIT_OBJS := $(UNIT_SRCS:%.c=$(BUILD)/obj/%.o)
FUZZ_BINS := $(FUZZ_SRCS:tests/fuzz/%.c=$(BUILD)/fuzz/%)
BENCH_BINS := $(BENCH_SRCS:tests/bench/%.c=$(BUILD)/bench/%)
FUZZ_DRIVER := $(if $(filter fuzz,$(VARIANT)),,$(BUILD)/obj/tests/fuzz/replay.o)

LIB := $(BUILD)/libmemplan.a
UNIT := $(BUILD)/unit
PROGRAM := $(if $(filter release,$(VARIANT)),memplan,$(BUILD)/memplan)

# --- library and command ---

## all: the library and ./memplan (default)
all: lib $(if $(wildcard src/main.c),$(PROGRAM))

## lib: build/VARIANT/libmemplan.a
lib: $(LIB)

# Lists that targets depend on; the file changes only when its words do.
.PHONY: FORCE
FORCE:
define stamp
$$(BUILD)/$(1).stamp: FORCE
	@mkdir -p $$(@D)
	@printf '%s\n' '$(2)' | cmp -s - $$@ || printf '%s\n' '$(2)' >$$@
endef
$(eval $(call stamp,flags,$(COMPILE) $(LINK) $(MP_LDLIBS) $(LDLIBS)))
$(eval $(call stamp,sources,$(LIB_SRCS) $(CLI_SRCS) $(UNIT_SRCS)))
$(eval $(call stamp,shipped,$(SHIPPED)))

$(BUILD)/obj/%.o: %.c $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	@echo '  CC      $<'
	$(Q)$(COMPILE) -MMD -MP -c $< -o $@

$(BUILD)/obj/shipped_data.o: $(BUILD)/gen/shipped_data.c $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	@echo '  CC      $<'
	$(Q)$(COMPILE) -MMD -MP -c $< -o $@

$(BUILD)/gen/shipped_data.c: src/spec/shipped.sh $(SHIPPED) $(BUILD)/shipped.stamp
	@mkdir -p $(@D)
	@echo '  GEN     $@'
	$(Q)sh src/spec/shipped.sh $(SHIPPED) >$@

$(BUILD)/obj/report_assets.o: $(BUILD)/gen/report_assets.c $(BUILD)/flags.stamp
	@mkdir -p $(@D)
	@echo '  CC      $<'
	$(Q)$(COMPILE) -MMD -MP -c $< -o $@

$(BUILD)/gen/report_assets.c: src/report/assets.sh $(ASSETS)
	@mkdir -p $(@D)
	@echo '  GEN     $@'
	$(Q)sh src/report/assets.sh $(ASSETS) >$@

$(LIB): $(LIB_OBJS) $(BUILD)/sources.stamp
	@echo '  AR      $@'
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJS)

$(PROGRAM): $(CLI_OBJS) $(LIB) $(BUILD)/sources.stamp
	@echo '  LINK    $@'
	$(Q)$(LINK) -o $@ $(CLI_OBJS) $(LIB) $(MP_LDLIBS) $(LDLIBS)

# --- tests ---

$(BUILD)/gen/suites.inc: $(BUILD)/sources.stamp
	@mkdir -p $(@D)
	@printf 'X(%s)\n' $(patsubst test_%,%,$(basename $(notdir $(SUITES_SRCS)))) >$@

$(BUILD)/obj/tests/%.o: MP_CPPFLAGS += $(MP_TEST_CPPFLAGS)
$(UNIT_OBJS): | $(BUILD)/gen/suites.inc
$(BUILD)/obj/tests/unit/main.o: $(BUILD)/gen/suites.inc

$(UNIT): $(UNIT_OBJS) $(LIB) $(BUILD)/sources.stamp
	@echo '  LINK    $@'
	$(Q)$(LINK) -o $@ $(UNIT_OBJS) $(LIB) $(MP_TEST_LDLIBS) $(MP_LDLIBS) $(LDLIBS)

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(FUZZ_DRIVER) $(LIB)
	@mkdir -p $(@D)
	@echo '  LINK    $@'
	$(Q)$(LINK) $(if $(FUZZ_DRIVER),,-fsanitize=fuzzer) -o $@ $^ $(MP_LDLIBS) $(LDLIBS)

$(BUILD)/bench/%: $(BUILD)/obj/tests/bench/%.o $(LIB)
	@mkdir -p $(@D)
	@echo '  LINK    $@'
	$(Q)$(LINK) -o $@ $^ $(MP_LDLIBS) $(LDLIBS)

TEST_ENV = BUILD=$(BUILD) PROGRAM=$(PROGRAM)
PROGRAMS := $(UNIT) $(if $(wildcard src/main.c),$(PROGRAM)) $(FUZZ_BINS)

## check: unit and property tests; SUITES="a b" runs only these, JOBS=N that many at a time
check: $(UNIT)
	$(Q)$(TEST_ENV) tests/parallel $(UNIT) $(or $(SUITES),$$($(UNIT) --list))

## cases: whole commands of tests/cases; UPDATE=1 rewrites what is expected, CASES="a b" picks some
cases: $(if $(wildcard src/main.c),$(PROGRAM))
	$(Q)$(TEST_ENV) UPDATE=$(UPDATE) tests/cases/run $(CASES)

## compare: the accuracy thresholds of tests/compare
compare: $(if $(wildcard src/main.c),$(PROGRAM))
	$(Q)$(TEST_ENV) tests/run compare

## replay: the corpus of every fuzz target through a plain driver
replay: $(FUZZ_BINS)
	$(Q)$(TEST_ENV) tests/run replay

## test: check, cases, compare and replay; ends with N passed, N failed, N skipped
test: $(PROGRAMS)
	$(Q)$(TEST_ENV) tests/run unit cases compare replay

## asan: the tests under AddressSanitizer
asan:
	$(Q)$(MAKE) SANITIZE=address test

## ubsan: the tests under UndefinedBehaviorSanitizer
ubsan:
	$(Q)$(MAKE) SANITIZE=undefined test

## tsan: unit tests under ThreadSanitizer, without OpenMP, whose runtime it cannot follow
tsan:
	$(Q)$(MAKE) SANITIZE=thread HAVE_OPENMP=0 check

VALGRIND := valgrind -q --trace-children=yes --leak-check=full --errors-for-leak-kinds=definite --error-exitcode=9
## valgrind: unit tests under valgrind, one malloc per block; SUITES="a b" runs only these
valgrind: $(UNIT)
	$(Q)$(TEST_ENV) MEMPLAN_ARENA=malloc CK_TIMEOUT_MULTIPLIER=30 \
		tests/parallel '$(VALGRIND) $(UNIT)' $(or $(SUITES),$$($(UNIT) --list))

## fuzz: every fuzz target for FUZZ_SECONDS with libFuzzer (needs clang)
fuzz:
	$(Q)if printf 'int x;' | $(CLANG) -fsanitize=fuzzer -x c - -shared -fPIC -o /dev/null 2>/dev/null; then \
		$(MAKE) VARIANT=fuzz CC=$(CLANG) HAVE_OPENMP=0 SANITIZE=fuzzer-no-link,address,undefined fuzz-run; \
	else echo 'fuzz: $(CLANG) with libFuzzer not found; .ci/install --fuzz'; fi

.PHONY: fuzz-run
fuzz-run: $(FUZZ_BINS)
	$(Q)BUILD=$(BUILD) FUZZ_SECONDS=$(FUZZ_SECONDS) tests/fuzz/run $(FUZZ_BINS)

## coverage: line coverage of the unit tests and cases, in build/coverage
coverage:
	$(Q)$(MAKE) VARIANT=coverage CFLAGS='-O0 -g --coverage' check cases
	$(Q)if command -v lcov >/dev/null; then \
		lcov -q -c -d build/coverage/obj/src -o build/coverage/lcov.info && lcov --summary build/coverage/lcov.info; \
	else find build/coverage/obj/src -name '*.gcno' -exec gcov -n {} + | grep -A1 "^File 'src"; fi

## bench: the programs of tests/bench
bench: $(BENCH_BINS)
	$(Q)for program in $(BENCH_BINS); do echo "$$program"; $$program || exit 1; done

NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
## validate: memplan-validate for the GPU of this machine (needs nvcc)
validate: lib
ifeq ($(NVCC),)
	@echo 'validate: nvcc not found; set CUDA_HOME to build the GPU programs'
else ifeq ($(wildcard validate/Makefile),)
	@echo 'validate: nothing to build in validate/'
else
	$(Q)$(MAKE) -C validate CUDA_HOME='$(CUDA_HOME)'
endif

# --- source care ---

## lint: cppcheck, shellcheck and mandoc, as far as installed
lint: headers
	$(Q)if command -v cppcheck >/dev/null; then \
		cppcheck -q --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 \
			-DMP_HAVE_GLPK=0 -Isrc src; else echo 'lint: cppcheck not found'; fi
	$(Q)if command -v shellcheck >/dev/null; then shellcheck -s sh $(SCRIPTS) src/spec/shipped.sh src/report/assets.sh; \
		else echo 'lint: shellcheck not found'; fi
	$(Q)if [ -n '$(MAN_PAGES)' ] && command -v mandoc >/dev/null; then \
		mandoc -T lint -W warning $(MAN_PAGES); else echo 'lint: no man pages or no mandoc'; fi

## docs: the man pages as HTML in build/docs
docs:
	@mkdir -p build/docs
	$(Q)for page in $(MAN_PAGES); do \
		mandoc -T html -O style=mandoc.css $$page >build/docs/$$(basename $$page).html || exit 1; done

## format: clang-format on the C files that differ from HEAD; FILES="a.c b.h" picks others
FILES ?= $(shell git ls-files -m -o --exclude-standard 'src/*.[ch]' 'tests/*.[ch]')
format:
	$(Q)if [ -n '$(strip $(FILES))' ]; then clang-format -i $(FILES); else echo 'format: no C file differs from HEAD'; fi

## headers: each header compiles on its own
headers:
	$(Q)for header in $(HEADERS); do \
		printf '#include "%s"\ntypedef int mp_header_compiles;\n' "$${header#src/}" | $(COMPILE) -Werror -fsyntax-only -x c - || exit 1; \
	done; echo '$(words $(HEADERS)) headers compile alone'

## compile_commands.json: for editors and clang tools
compile_commands.json: $(BUILD)/sources.stamp
	@echo '  GEN     $@'
	$(Q)first='['; for source in $(LIB_SRCS) $(CLI_SRCS) $(UNIT_SRCS) $(FUZZ_SRCS); do \
		printf '%s\n{"directory": "%s", "file": "%s", "command": "%s"}' "$$first" '$(CURDIR)' "$$source" \
			'$(COMPILE) $(MP_TEST_CPPFLAGS) -c '"$$source"; first=','; done >$@; printf '\n]\n' >>$@

# --- shipping ---

## install: program, library, header and man pages under DESTDIR and PREFIX
install: all
	$(INSTALL) -d '$(DESTDIR)$(BINDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' '$(DESTDIR)$(INCLUDEDIR)' \
		'$(DESTDIR)$(MANDIR)/man1'
	$(INSTALL) -m 755 $(PROGRAM) '$(DESTDIR)$(BINDIR)/memplan'
	$(INSTALL) -m 644 $(LIB) '$(DESTDIR)$(LIBDIR)/libmemplan.a'
	$(INSTALL) -m 644 src/memplan.h '$(DESTDIR)$(INCLUDEDIR)/memplan.h'
	$(if $(MAN_PAGES),$(INSTALL) -m 644 $(MAN_PAGES) '$(DESTDIR)$(MANDIR)/man1')
	$(if $(wildcard validate/memplan-validate),$(INSTALL) -D -m 755 validate/memplan-validate '$(DESTDIR)$(PREFIX)/libexec/memplan/memplan-validate')
	$(Q)printf '%s\n' 'Name: memplan' 'Description: GPU-memory planner for Transformer training' \
		'Version: $(VERSION)' 'Cflags: -I$(INCLUDEDIR)' \
		'Libs: -L$(LIBDIR) -lmemplan $(strip $(MP_LDLIBS) $(MP_OPENMP))' \
		>'$(DESTDIR)$(LIBDIR)/pkgconfig/memplan.pc'

## uninstall: remove what install put there
uninstall:
	rm -f '$(DESTDIR)$(BINDIR)/memplan' '$(DESTDIR)$(LIBDIR)/libmemplan.a' \
		'$(DESTDIR)$(LIBDIR)/pkgconfig/memplan.pc' '$(DESTDIR)$(INCLUDEDIR)/memplan.h' \
		'$(DESTDIR)$(PREFIX)/libexec/memplan/memplan-validate' \
		$(patsubst %,'$(DESTDIR)$(MANDIR)/man1/%',$(notdir $(MAN_PAGES)))

## dist: memplan-VERSION.tar.gz of the committed tree
dist:
	git archive --format=tar.gz --prefix=memplan-$(VERSION)/ -o memplan-$(VERSION).tar.gz HEAD

## clean: remove everything that was built
clean:
	rm -rf build memplan compile_commands.json memplan-*.tar.gz validate/build validate/memplan-validate

## help: this list
help:
	@sed -n 's/^## \([^:]*\): \(.*\)/\1\t\2/p' Makefile | awk -F '\t' '{ printf "  %-22s %s\n", $$1, $$2 }'

.PHONY: all lib check cases compare replay test asan ubsan tsan valgrind fuzz coverage bench validate lint \
	format headers docs install uninstall dist clean help
.SECONDARY:

-include $(wildcard $(BUILD)/obj/*.d $(BUILD)/obj/*/*.d $(BUILD)/obj/*/*/*.d)
