"""Errors of export and compilation: guards, lowering, Triton, C++, the linker.

Texts: fx/experimental/symbolic_shapes.py, _inductor/{__init__,exc,codecache,compile_fx}.py, codegen/cpp_wrapper_*.py of
torch 2.8-2.15; Triton's CompilationError; GCC and Clang.
"""

from .kinds import BUILD_GUIDE, SHAPES_GUIDE, Naming, Table

TABLE = Table("compile")

# A file and position as GCC, Clang and Metal (for a shader without a file) print them; MSVC's form follows.
_SOURCE = r"(?<![^\s:])(?P<file>[^\s:]+\.(?:cpp|cc|cxx|h|hpp|cu|cuh)|program_source):(?P<line>\d+):(?P<column>\d+): "
# A library as linkers name it. Unlike an object file, it was not written by the current compile.
_LINKED = r"(?P<file>[^\s:]+\.(?:so|a|dylib)[\w.]*)"
_MSVC_SOURCE = r"^\s*(?P<file>\S.*?)\((?P<line>\d+)(?:,\d+)?\): (?:fatal )?"

TABLE.error(
    "export_constraints",
    (
        r"Constraints violated \((?P<dims>.*?)\)!",
        r"Not all values of (?P<dim>\w+) .*satisfy the generated guard (?P<guard>.+)",
        r"You marked (?P<dim>\S+) as dynamic but your code specialized it to be a constant \((?P<value>\d+)\)",
        r"(?<!\S)(?P<dim>\S+) was inferred to be a constant \((?P<value>\d+)\)",
    ),
    "compile_failure",
    "The model does not allow all sizes of a dynamic dimension.",
    'UserError: Constraints violated (batch)! For more information, run with TORCH_LOGS="+dynamic".',
    guide=SHAPES_GUIDE,
    stage="export",
    names=(Naming("dimension {dim}", "{value}", kind="script"), Naming("dimension {dims}", kind="script")),
    fix="declare only sizes that the model takes (min, max, or a multiple: 8 * Dim), or change the line",
)
TABLE.error(
    "data_dependent",
    (
        r"(?P<detail>Could not (?:guard on|extract specialized integer from) data-dependent expression)(?: (?P<expression>.+?)(?: \(unhinted|\.?\s*$))?",
        r"(?P<detail>GuardOnDataDependentSymNode)",
    ),
    "compile_failure",
    "The export or compile needs a value known only at run time.",
    "Could not guard on data-dependent expression u0 > 3 (unhinted: u0 > 3).",
    guide=SHAPES_GUIDE,
    stage="export",
    names=Naming("{expression}", kind="script"),
    sentence="The compiler cannot decide {expression}: it depends on a value known only at run time.",
    fix="take the value with .item(), not int(), and state after it with torch._check what always holds (n >= 2 if it asks whether n is 1). For a branch, use "
    "torch.where or torch.cond. Run a loop a fixed number of times and mask the surplus. For an operator that needs the size, pad to the largest size and mask, or write a custom operator",
)
TABLE.cause(
    "shapes_structure",
    r"(?P<detail>Detected mismatch between the structure of `inputs` and `dynamic_shapes`.*|When `dynamic_shapes` is specified as a dict, its top-level keys.*|(?:Unexpected|Expected|Cannot associate) .*specified at `dynamic_shapes.*)",
    "compile_failure",
    "dynamic_shapes does not have the structure of the arguments.",
    "Detected mismatch between the structure of `inputs` and `dynamic_shapes`: `inputs[0]` has 2 elements, but `dynamic_shapes[0]` has 1 elements",
    guide=SHAPES_GUIDE,
    stage="export",
    fix="nest dynamic_shapes as the arguments are nested: for each tensor {{dimension: Dim}} or None",
)
TABLE.error(
    "branch_alias",
    r"(?<!\w)(?P<name>\w+) might be (?P<what>aliasing the input or the output|modifying the input)!",
    "compile_failure",
    "A branch of torch.cond, or a body of another control flow operator, returns or writes one of its inputs.",
    "RuntimeError: cond_false might be aliasing the input or the output!",
    guide=SHAPES_GUIDE,
    stage="export",
    names=Naming("{name}", kind="script"),
    fix="return a copy in that branch (x.clone()), and write into a copy",
)
TABLE.error(
    "export_unsupported",
    (
        r"torch\._dynamo\.exc\.(?P<kind>Unsupported|UserError|TorchRuntimeError|InternalTorchDynamoError)(?:: (?P<detail>.*))?",
        r"(?P<detail>Data-dependent branching|Graph break|Dynamic control flow is not supported)",
    ),
    "compile_failure",
    "The export could not trace the model.",
    "torch._dynamo.exc.Unsupported: Data-dependent branching",
    guide=SHAPES_GUIDE,
    stage="export",
)
TABLE.error(
    "wrong_api_argument",
    r"(?P<detail>Only ExportedProgram is supported|exported_program\.example_inputs is required to be set|Expect package path to be a file ending in \.pt2.*|torch\._inductor\.config\.(?P<option>[\w.]+) does not exist|'(?P<level>[^']*)' is not a valid IntermediateValueDebuggingLevel|cannot both be True|Metadata must only contain strings|Unexpected optimization option (?P<flag>\S+))",
    ("script_error", "compile_failure"),
    "The compiler was called with an argument or option that it does not accept.",
    "AttributeError: torch._inductor.config.aot_inductor.nope does not exist",
    guide=BUILD_GUIDE,
    names=Naming("{option}", "not an option of this torch", kind="script"),
    fix="correct the name {option} among the options (torch._inductor.config lists them), or leave it out",
)
# What a C++ host of a package needs from libtorch, in the texts of GCC 12 and GNU ld (torch 2.13).
TABLE.cause(
    "host_standard",
    (
        r"(?<![^\s:])(?P<file>[^\s:]+/(?:c10|ATen|torch)/[^\s:]+\.h):\d+:\d+: error: ['‘](?P<name>\w+)['’] (?:is not a member of|in namespace) ['‘]std['’]",
        r"#error (?:You need )?(?P<standard>C\+\+\d\d)(?: or later compatible compiler is required to use| to compile) PyTorch",
    ),
    "toolchain",
    "The program around the package is compiled for an older C++ standard than the headers of libtorch need.",
    "/opt/torch/include/c10/util/StringUtil.h:65:22: error: ‘is_enum_v’ is not a member of ‘std’; did you mean ‘is_enum’?",
    names=(Naming("{standard}"), Naming("std::{name}")),
    fix="compile that program with -std=c++20 (CMake: set(CMAKE_CXX_STANDARD 20))",
)
TABLE.cause(
    "host_moved_header",
    r"(?<![^\s:])(?P<file>[^\s:]+):(?P<line>\d+):\d+: fatal error: (?P<header>torch/csrc/inductor/aoti_model_\w+?(?P<device>_cuda)?\.h): No such file or directory",
    "toolchain",
    "The program around the package includes a header by a path of older releases of torch.",
    "main.cpp:5:10: fatal error: torch/csrc/inductor/aoti_model_container_runner.h: No such file or directory",
    names=Naming("{header}"),
    fix="include torch/csrc/inductor/aoti_package/model_package_loader.h for a .pt2 (AOTIModelPackageLoader), or torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h (for CUDA _cuda.h) for a .so",
)
TABLE.cause(
    "host_header",
    r"(?<![^\s:])(?P<file>(?!\S*(?:wrapper|kernel)\.cpp)[^\s:]+):(?P<line>\d+):(?P<column>\d+): fatal error: (?P<header>(?:torch|ATen|c10)/[^\s:]+): No such file or directory",
    "toolchain",
    "The program around the package is compiled without the headers of libtorch.",
    "main.cpp:1:10: fatal error: torch/csrc/inductor/aoti_package/model_package_loader.h: No such file or directory",
    names=Naming("{header}"),
    fix="add torch/include and torch/include/torch/csrc/api/include to its include folders (CMake: find_package(Torch REQUIRED))",
)
TABLE.cause(
    "host_abi",
    r"undefined reference to [`‘'](?P<symbol>(?:torch|c10|at|aoti)::[\w:~]+)\([^\n]*\bstd::string\b",
    "toolchain",
    "The program around the package is compiled for the old C++ ABI of std::string, and libtorch for the new one.",
    "main.cpp:(.text+0x1d6): undefined reference to `torch::inductor::AOTIModelPackageLoader::AOTIModelPackageLoader(std::string const&, std::string const&, bool, unsigned long, signed char)'",
    names=Naming("{symbol}"),
    fix="compile that program with -D_GLIBCXX_USE_CXX11_ABI=1, or leave the option out",
)
TABLE.cause(
    "host_package",
    r"find a package configuration file provided by \"(?P<package>Torch|Caffe2|executorch|AOTI)\"",
    "toolchain",
    "CMake does not find libtorch for the program around the package.",
    'Could not find a package configuration file provided by "Torch" with any of',
    names=Naming("find_package({package})"),
    fix="tell CMake where torch is installed: cmake -DCMAKE_PREFIX_PATH=\"$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')\"",
)
TABLE.cause(
    "host_cuda",
    r"Your installed Caffe2 version uses (?P<library>CUDA|XPU|glog|gflags|protobuf)\b",
    "toolchain",
    "This libtorch was built with a library that CMake does not find here.",
    "Your installed Caffe2 version uses CUDA but I cannot find the CUDA",
    names=Naming("{library}"),
    fix="install {library} for development, or build with a libtorch without it; for CUDA also give CMake -DCUDAToolkit_ROOT=/usr/local/cuda",
)
TABLE.cause(
    "host_library",
    (
        r"undefined reference to [`‘'](?P<symbol>(?:torch|c10|at|aoti)::[\w:~]+)",
        r"undefined reference to symbol '(?P<symbol>_ZNK?(?:5torch|3c10|2at)\w*)",
        r"lib(?P<library>torch\w*|c10\w*)\.so: error adding symbols: DSO missing from command line",
    ),
    "toolchain",
    "The program around the package is linked without libtorch, or without one of its libraries, or names them before its object files.",
    "main.cpp:(.text+0x225): undefined reference to `torch::inductor::AOTIModelPackageLoader::~AOTIModelPackageLoader()'",
    names=(Naming("-l{library}"), Naming("{symbol}")),
    fix="link -ltorch -ltorch_cpu -lc10 after the object files and sources, for CUDA -ltorch_cuda and -lc10_cuda as well (CMake: target_link_libraries with TORCH_LIBRARIES)",
)
TABLE.cause(
    "cpp_undeclared",
    _SOURCE
    + r"(?:fatal )?error: (?:use of undeclared identifier )?['‘`]?(?P<name>[\w:~<>]+)['’`]?(?: was not declared.*| has not been declared|; did you mean.*)?$",
    "compile_failure",
    "The generated C++ uses a name that is not declared.",
    "/c/x.wrapper.cpp:123:45: error: ‘s1’ was not declared in this scope; did you mean ‘y1’?",
    not_proven="Which part of the model asked for it. The generated line shows it. A shim of a custom operator has its own declared name.",
    sentence="The generated code uses {name}, which is not declared ({file}:{line}).",
)
TABLE.cause(
    "cpp_header",
    (
        r"(?<![^\s:])(?P<file>[^\s:]+):(?P<line>\d+):(?P<column>\d+): fatal error: '?(?P<header>[^\s']+?)'?:? (?:No such file or directory|file not found)|fatal error: '?(?P<header2>[\w./+-]+)'? file not found",
        r"fatal error C1083: [^']*'(?P<header2>[^']+)'",
    ),
    "toolchain",
    "The compiler does not find a header, because the installation of the compiler, Python or CUDA is "
    "incomplete.",
    "/usr/include/x.h:12:10: fatal error: Python.h: No such file or directory",
    names=(
        Naming("{blind}", "does not find <{header}>, of the C++ library"),
        Naming("{header}"),
        Naming("{header2}"),
    ),
    fix="{blind} does not find the C++ standard library: set CXX to a compiler that does, and remove options such as -nostdinc++",
)
TABLE.cause(
    "compiler_killed",
    r"(?P<detail>(?:fatal error: )?Killed signal terminated program (?P<program>\w+)|virtual memory exhausted|cc1plus: out of memory|LLVM ERROR: out of memory)",
    "out_of_memory",
    "The compiler ran out of memory and was killed.",
    "g++: fatal error: Killed signal terminated program cc1plus",
    names=Naming("host memory", "the compiler was killed"),
)
TABLE.cause(
    "compiler_crash",
    r"(?P<detail>internal compiler error: .+|PLEASE submit a bug report to|Segmentation fault: .*compiler)",
    ("toolchain", "compile_failure"),
    "The compiler itself crashed.",
    "x.cpp:1:1: internal compiler error: Segmentation fault",
)
# Words that C++20 reserves and Python does not ([lex.key] of the standard).
_RESERVED = (
    "alignas|alignof|asm|auto|bool|case|catch|char|concept|const|constexpr|decltype|default|delete|do|double|enum"
    "|explicit|export|extern|float|friend|goto|inline|int|long|mutable|namespace|new|operator|private|protected"
    "|public|register|requires|short|signed|sizeof|static|struct|switch|template|this|throw|typedef|typeid"
    "|typename|union|unsigned|using|virtual|void|volatile"
)
TABLE.cause(
    "cpp_keyword",
    _SOURCE + rf"error: expected unqualified-id before [‘'](?P<name>{_RESERVED})[’']",
    "compile_failure",
    "A parameter, a buffer or an input of the model has the name of a reserved word of C++, and the generated "
    "code uses the name as it is.",
    "/c/x.wrapper.cpp:834:28: error: expected unqualified-id before ‘template’",
    names=Naming("{name}", kind="constant"),
    fix="rename {name} in the model",
)
TABLE.cause(
    "cpp_error",
    (_SOURCE + r"(?:fatal )?error: (?P<detail>.+)", _MSVC_SOURCE + r"error (?P<code>C\d{4}): (?P<detail>.+)"),
    ("compile_failure", "toolchain"),
    "The generated C++ does not compile.",
    "/c/x.kernel.cpp:30:5: error: cannot convert ‘float*’ to ‘const double*’",
)
TABLE.cause(
    "cpp_headers",
    (),
    "toolchain",
    "torch's own headers do not compile here, before any generated code: the compiler finds another header "
    "before a standard one, or does not fit this torch.",
    "/v/torch/include/c10/util/Optional.h:30:5: error: ‘optional’ in namespace ‘std’ does not name a template type",
    names=Naming("C++ headers", "{file}:{line}"),
    fix="see which directories CPATH, CPLUS_INCLUDE_PATH and options put before the compiler's own, and whether the compiler is new enough for this torch",
)
TABLE.cause(
    "compiler_option",
    (
        r"(?<![\w+./-])(?P<program>[\w+./-]*(?:g\+\+|gcc|clang(?:\+\+)?|cc1plus|nvcc)[\w.-]*): (?:fatal )?error: (?P<detail>.*(?:unrecognized|unknown|unsupported|no input files|bad value|not recognized|cannot execute|No such file).*)",
        r"(?P<program>\bcl)\b.* error (?P<code>D8\d{3}): (?P<detail>.+)",
    ),
    "toolchain",
    "The compiler does not know an option that was requested: it is too old, or not the expected compiler.",
    "g++: error: unrecognized command-line option '-std=c++20'",
    names=Naming("{program}", "{detail}"),
)
TABLE.cause(
    "link_file",
    (
        # GNU ld; gold; lld
        rf"(?<![^\s:]){_LINKED}: (?P<detail>file format not recognized; treating as linker script|file not recognized[^\n]*)",
        rf"ld(?:\.\w+)?: error: {_LINKED}: (?P<detail>(?:ELF )?file too short|file is empty|not an object or archive)",
        rf"ld\.lld: error: {_LINKED}(?::\d+)?: (?P<detail>unknown directive: .*|unknown file type|file is empty)",
    ),
    "toolchain",
    "The linker was given a file that is not a library: a git-lfs pointer, a web page instead of a "
    "download, or part of a file.",
    "/usr/bin/ld:/opt/sdk/lib/libgomp.so: file format not recognized; treating as linker script",
    names=Naming("{file}", "{detail}"),
    sentence="The linker rejects {file}, which it cannot read as a library: {detail}.",
    fix="replace {file} with the real library, or remove its directory from the linker's search path",
)
TABLE.cause(
    "link_library",
    (
        r"(?P<detail>(?:cannot find|unable to find library) -l(?P<library>[\w.+-]+))",
        r"ld(?:\.\w+)?: (?:error: )?(?P<detail>(?:skipping incompatible|file not recognized|unrecognized option)[^\n]*)",
        r"LINK : fatal error (?P<detail>LNK(?:1104|1181): [^']*'(?P<library>[^']+)')",
    ),
    "toolchain",
    "A library that the linker needs is missing, or is for another architecture or format.",
    "/usr/bin/ld: cannot find -lstdc++: No such file or directory",
    names=(Naming("-l{library}"), Naming("linker", "{detail}")),
    fix="install what the linker looks for, put its folder on LIBRARY_PATH (for -lcuda without a driver, the lib64/stubs of CUDA), or leave it out of the link options",
)
TABLE.cause(
    "linker_shim",
    (
        r"(?P<detail>undefined reference to [`‘']?(?P<symbol>aoti_torch_\w+)[’']?)",
        r"error LNK\d+: (?P<detail>unresolved external symbol (?P<symbol>aoti_torch_\w+).*)",
    ),
    ("toolchain", "compile_failure"),
    "The generated code calls a function of torch's C interface that this libtorch does not have.",
    "/usr/bin/ld: a.o: undefined reference to `aoti_torch_cpu_mm_out'",
    not_proven="Whether libtorch and the headers are from different releases, or the operator never had "
    "such a function.",
    names=Naming("{symbol}"),
)
TABLE.cause(
    "linker",
    (
        r"(?P<detail>undefined reference to (?:symbol )?[`‘']?(?P<symbol>[^`’'\n]+)[’']?)",
        r"ld(?:\.\w+)?: (?:error: )?(?P<detail>(?:cannot find|unable to find|undefined symbol|final link failed|relocation .*truncated)[^\n]*)",
        r"error LNK\d+: (?P<detail>.+)",
        r"(?P<detail>relocation truncated to fit)",
    ),
    "toolchain",
    "The linker failed.",
    "x.cpp:(.text+0x20): undefined reference to `WinMain'",
    names=(Naming("{symbol}"), Naming("linker", "{detail}")),
    fix="link the library that defines {symbol}, of the release and the C++ ABI of the headers",
)
TABLE.consequence(
    "linker_status",
    r"(?P<detail>collect2: error: ld returned \d+ exit status|linker command failed with exit code \d+)",
    ("toolchain",),
    "The linker failed; its own message is above this line.",
    "collect2: error: ld returned 1 exit status",
    tags="build_tool",
)
TABLE.symptom(
    "compiler_status",
    r"CalledProcessError: Command '\[?'?(?P<program>[^' ]*(?:g\+\+|gcc|clang(?:\+\+)?|/ld|objcopy|nvcc|ptxas|ninja))[' ](?P<detail>.*)",
    ("toolchain",),
    "A tool of the compiler failed. If its own message was kept, it is above this line.",
    "subprocess.CalledProcessError: Command '['/usr/bin/ld', '-r', '-b', 'binary']' returned non-zero exit status 1.",
    names=Naming("{program}", "{detail}"),
    tags="build_tool",
)
TABLE.cause(
    "no_compiler",
    (
        r"No working C\+\+ compiler found(?P<detail>.*?(?:'(?P<program>[^']+)'\))?)$",
        r"Compiler: (?P<compiler>\S+) is not found",
        r"InvalidCxxCompiler",
        r"(?P<detail>Failed to find C compiler|nvcc is required to build fatbin|No such file or directory: '(?P<program>(?:[^']*[/-])?(?:g\+\+|gcc|clang(?:\+\+)?|nvcc|ptxas|ld)(?:[.-][\w.-]*)?)'|(?<![\w./+-])(?P<missing>[\w./+-]*(?:g\+\+|gcc|clang|nvcc|ptxas)[\w.-]*): (?:command )?not found|CUDA_HOME environment variable is not set)",
    ),
    "toolchain",
    "No usable compiler was found.",
    "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')",
    names=(Naming("{program}"), Naming("{compiler}"), Naming("{missing}"), Naming("C++ compiler")),
    fix="install a C++ compiler, or name one that exists: in CXX, or in torch._inductor.config.cpp.cxx if the program sets it",
)
TABLE.cause(
    "ptxas_old",
    (
        r"ptxas.* (?:fatal|error)\s*: (?P<detail>Value '(?P<arch>\w+)' is not defined for option 'gpu-name')",
        r"ptxas.* (?:fatal|error)\s*: (?P<detail>Unsupported \.version (?P<version>[\d.]+); current version is .*)",
    ),
    "toolchain",
    "The GPU assembler is older than the GPU or than Triton: it does not know the architecture or the PTX version.",
    "ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'",
    names=Naming("ptxas", "{detail}"),
    fix="set TRITON_PTXAS_PATH to the ptxas of a CUDA toolkit that knows this GPU, or install a newer Triton",
)
TABLE.cause(
    "ptxas",
    r"ptxas.* (?:fatal|error)\s*: (?P<detail>.+)",
    ("compile_failure", "arch_mismatch", "toolchain"),
    "The GPU assembler rejected the kernel: it uses something that this architecture lacks, or the PTX is "
    "invalid.",
    "ptxas /tmp/a.ptx, line 606; error   : Feature '.tile::gather4' not supported on .target 'sm_120a'",
)
TABLE.symptom(
    "ptxas_status",
    r"(?P<detail>PTXASError|`ptxas` (?:failed|error|fatal))",
    ("toolchain", "compile_failure", "arch_mismatch"),
    "The GPU assembler failed; its own message follows.",
    "triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error",
)
TABLE.cause(
    "triton_compile",
    (
        r"(?:triton\.compiler\.errors\.)?(?:CompilationError|UnsupportedLanguageConstruct|CompileTimeAssertionFailure): at (?P<kernel_line>\d+):(?P<kernel_column>\d+):",
        r"Failed to run autotuning code block: at (?P<kernel_line>\d+):(?P<kernel_column>\d+):",
        r"(?P<detail>error: operation scheduled before its operands|PassManager::run failed|LLVM ERROR: .+)",
    ),
    "compile_failure",
    "Triton could not compile a kernel; line and column count from the kernel's `def`.",
    "triton.compiler.errors.CompilationError: at 7:8:",
    sentence="Triton could not compile {function}, at line {kernel_line} of the kernel.",
    names=Naming("{function}", "{reason}", kind="kernel"),
)
TABLE.error(
    "triton_kernel_named",
    r"Triton compilation failed: (?P<kernel>\w+)",
    "compile_failure",
    "The line names the kernel that Triton could not compile.",
    "Triton compilation failed: decay_scan_0",
)
TABLE.consequence(
    "autotune_failed",
    (
        r"Failed to run autotuning code block: (?P<detail>.+)",
        r"Failed during launch (?P<kernel>\w+) with config (?P<config>.+)",
        r"No valid triton configs\. (?P<detail>.*)",
    ),
    "compile_failure",
    "A kernel failed while the compiler benchmarked it.",
    "RuntimeError: Failed to run autotuning code block: name 'x' is not defined",
)
TABLE.error(
    "lowering",
    (
        r"LoweringException: (?P<detail>.+)",
        r"(?:MissingOperatorWithDecomp|MissingOperatorWithoutDecomp|UnsupportedOperator\w*)(?:: (?P<detail>.*))?",
        r"(?P<detail>C\+\+ wrapper codegen error: .+|NYI support for return type: \w+|arg type .+ is not yet supported by custom_op_wrapper|codegen invoke_subgraph is not implemented for cpp wrapper|input name='.*' cannot be symbolic|CudaKernelParamCache not populated for \w+|Models with buffer mutation included doesn't support constants greater than 2GB)",
        r"is too big to optimize|compile_wrapper_opt_level = 'O0' flag",
    ),
    "compile_failure",
    "Inductor cannot lower the model or generate code for it.",
    "torch._inductor.exc.LoweringException: AttributeError: 'float' object has no attribute 'node'",
)
TABLE.error(
    "inductor_internal",
    r"InductorError: (?P<kind>AssertionError|NotImplementedError|AttributeError|KeyError|IndexError|TypeError|ZeroDivisionError)(?:: ?(?P<detail>.*))?$",
    "compile_failure",
    "Inductor itself failed while it lowered the model or generated code for it.",
    "torch._inductor.exc.InductorError: AssertionError: ",
)
TABLE.consequence(
    "inductor_error",
    r"torch\._inductor\.exc\.(?P<kind>InductorError|CppCompileError|CUDACompileError|\w*Error|\w*Exception)(?:: (?P<detail>.*))?",
    ("compile_failure", "toolchain"),
    "Compilation failed; the reason is inside the message or in the lines before it.",
    "torch._inductor.exc.InductorError: CppCompileError: C++ compile error",
)
TABLE.consequence(
    "cpp_compile_error",
    r"(?P<detail>C\+\+ compile error)\s*$",
    ("compile_failure", "toolchain"),
    "A C++ compiler failed; its command and output follow.",
    "CppCompileError: C++ compile error",
    tags="build_tool",
)
