"""Errors of opening and loading a package, and of its constants: names, devices, storage, the mapped file.

Texts: model_package_loader.cpp, model_container.h, model_container_runner.cpp, model_base.h, package.py,
_package.py and nn/modules/module.py of torch 2.8-2.15, and the texts of the dynamic linker.
"""

from .kinds import BUILD_GUIDE, CONSTANTS_GUIDE, HANG_GUIDE, Naming, Table

TABLE = Table("load")

TABLE.error(
    "zip_open",
    r"Failed to initialize zip archive: (?P<reason>file open failed)",
    ("invalid_package", "environment"),
    "The package cannot be opened: the file does not exist, it may not be read, or the process has too many "
    "files open.",
    "RuntimeError: Failed to initialize zip archive: file open failed",
    not_proven="Which of the three causes it is. The text names neither the path nor the reason.",
    fix="see that the path is right, that this process may read it, and that it may open more files",
)
TABLE.error(
    "zip_archive",
    r"(?P<detail>Failed to initialize zip archive|(?:PytorchStreamReader )?failed (?:reading zip archive|finding central directory|finding file|locating file)|not a ZIP archive|File is not a zip file|BadZipFile|invalid header or archive is corrupted)(?:: (?P<reason>.+))?",
    "invalid_package",
    "The file is not a .pt2, or is truncated (the directory of a zip file is at its end).",
    "RuntimeError: Failed to initialize zip archive: failed finding central directory",
)
TABLE.error(
    "unpacking",
    r"Failed to extract (?:zip )?file (?P<member>\S+) to destination file (?P<path>[^,\s]+), mz_zip error string: (?P<detail>(?:write callback|file (?:create|write|open|close)) failed)",
    "environment",
    "The package could not be unpacked into the temporary directory: no space, no permission, or a limit on "
    "file sizes.",
    "RuntimeError: Failed to extract zip file m/x.wrapper.so to destination file /tmp/a/x.so, mz_zip error string: write callback failed",
    names=Naming("TMPDIR", "{path}: {detail}"),
    fix="set TMPDIR to a directory with room for the package, and raise limits on file sizes",
)
TABLE.error(
    "unpacking_damaged",
    r"Failed to extract (?:zip )?file (?P<member>[^\s,]+).*mz_zip error string: (?P<detail>.+)",
    "invalid_package",
    "A member of the package is damaged.",
    "RuntimeError: Failed to extract zip file m/x.wrapper.so to destination file /tmp/a/x.so, mz_zip error string: CRC-32 check failed",
)
TABLE.error(
    "load_exception",
    (),
    ("invalid_package", "environment", "toolchain", "arch_mismatch"),
    "The load of a package failed.",
    "RuntimeError: something unheard of",
)
TABLE.error(
    "model_name",
    (
        r"Failed to find (?:a generated cpp file or so file|wrapper metadata) for model '(?P<model>[^']*)' in the zip archive",
        # torch 2.8 prints no space before the list of members
        r"No AOTInductor generate cpp file or so file found in zip archive with the prefix \S*?(?P<model>[^/\s]+)Loaded the following",
    ),
    "invalid_package",
    "The package contains no model of this name.",
    "Failed to find a generated cpp file or so file for model 'nope' in the zip archive.",
    names=Naming("model '{model}'", "the package holds '{holds}'"),
    fix="pass the model_name that it was packaged under: inspect-package lists the names",
)
TABLE.error(
    "other_archive",
    (),
    "invalid_package",
    "The file is a zip archive with no compiled model in it.",
    "scorer.pt2",
    names=(
        Naming("{wrapped}", "a package inside another archive"),
        Naming("{saved}", "a file of torch.save"),
    ),
    fix="load the .pt2 that torch._inductor.aoti_compile_and_package wrote; unpack it first if it is inside another archive",
)
TABLE.error(
    "other_folder",
    (),
    "invalid_package",
    "The package contains this model, but the loader looks for it in another folder of the archive. It "
    "takes the folder from the first two members, and one of these does not belong to the package.",
    "towns/data/aotinductor/model/a.wrapper.so",
    names=Naming("model '{model}'", "the package holds '{holds}'"),
    fix="add further members to the archive after the package's own, or keep them outside the package",
)
TABLE.error(
    "not_compiled",
    (),
    "invalid_package",
    "The file contains an exported program (torch.export.save), which is not compiled yet.",
    "wear-2/models/model.json",
    names=Naming("{archive}", "an exported program"),
    fix="compile it with torch._inductor.aoti_compile_and_package, and load its output",
)
TABLE.error(
    "package_format",
    (
        r"Saved archive version (?P<got>-?\d+) does not match our current archive version (?P<expected>-?\d+)",
        r"Unable to load package\. f must be a buffer or a file ending in \.pt2",
        r"Multiple wrapper shared libraries found in AOTI package for model '(?P<model>[^']*)'",
        r"(?P<detail>No such file or directory|Is a directory|cannot open).*?(?<![^\s'\"])(?P<path>[^\s'\"]+\.pt2)",
        r"^(?P<detail>.*\.pt2.*: No such file or directory)",
    ),
    "invalid_package",
    "The file is not a package that this release can load.",
    "ValueError: Saved archive version 7 does not match our current archive version 0.",
)
TABLE.error(
    "package_file_missing",
    r"File not found: (?P<path>\S*(?:_compile_flags\.json|metadata\.json|\.so|\.cubin|\.json))",
    "invalid_package",
    "The package lacks a file that it needs.",
    "File not found: /tmp/ab/data/aotinductor/model/kernel_metadata.json",
    names=Naming("{path}"),
)
TABLE.noise(
    "outdated_package",
    r"Loading outdated pt2 file\. Please regenerate your package",
    ("invalid_package",),
    "The line is printed for every error of the first load attempt, whatever its cause. It is usually untrue.",
    "Loading outdated pt2 file. Please regenerate your package.",
    advice="read_cause",
    not_proven="That the package is old: PyTorch loads the file a second time and raises only the second error. `AOTIModelPackageLoader` shows the first.",
)
TABLE.error(
    "build_at_load",
    r"(?P<detail>Failed to (?:compile cpp file|link files))",
    "toolchain",
    "The package ships sources only and is built when it is loaded; the compiler's own message appears above this line.",
    "RuntimeError: Failed to compile cpp file.",
)
TABLE.error(
    "device_key",
    r"(?P<detail>Unsupported device key found: (?P<device>\w+)|No device information found)",
    ("device_mismatch", "invalid_package"),
    "This torch has no runner for the package's device type.",
    "RuntimeError: Unsupported device key found: cuda",
    advice="check_package",
    guide=BUILD_GUIDE,
)
TABLE.error(
    "device_unavailable",
    (
        r"Cannot load AOTInductor package for device '(?P<device>\w+)' because",
        r"libtorch_(?P<device>cuda)\.so: cannot open shared object file",
        r"Could not run '(?P<op>[^']+)' with arguments from the '(?P<backend>\w+)' backend",
        r"[Tt]orch\.cuda\.is_available\(\) is False",
    ),
    ("device_mismatch", "environment"),
    "The package (or a tensor) is for a device type that this process cannot use.",
    "RuntimeError: Cannot load AOTInductor package for device 'cuda' because torch.cuda.is_available() is False",
    advice="check_machine",
    guide=BUILD_GUIDE,
)
TABLE.error(
    "torch_without_device",
    r"Torch not compiled with (?P<device>\w+) enabled",
    "environment",
    "This build of torch does not support the device type that the program asks for.",
    "AssertionError: Torch not compiled with CUDA enabled",
    advice="check_machine",
    fix="install a build of torch for that device, or run the program on the CPU",
    guide=BUILD_GUIDE,
)
TABLE.error(
    "runner_device",
    r"Incorrect device passed to (?P<runner>aoti_runner_\w+)",
    "device_mismatch",
    "A device index was given for a package that was compiled for another device type.",
    "RuntimeError: Incorrect device passed to aoti_runner_cpu",
    advice="check_package",
    guide=BUILD_GUIDE,
    names=Naming("device_index of the load", "{runner}", kind="call"),
)
TABLE.error(
    "driver_library",
    r"(?P<library>libcuda\.so\S*|libnvidia\S+|libcudart\S*): cannot open shared object file",
    ("environment", "device_mismatch"),
    "The CUDA driver's library is not on this machine: a CUDA package cannot load here.",
    "Error in dlopen: libcuda.so.1: cannot open shared object file: No such file or directory",
)
TABLE.error(
    "undefined_symbol",
    r"(?:(?<!\S)(?P<library>(?!\w*Error: )\S+): )?undefined symbol: (?P<symbol>\S+)",
    "toolchain",
    "The library was built against another libtorch or C++ ABI, or a library that it needs (a custom operator's, for "
    "example) is not loaded.",
    "Error in dlopen: /tmp/m.so: undefined symbol: _ZN3c107WarningC1ENS_7variantE",
    sentence="{library} needs the symbol {symbol}, which no loaded library provides.",
    names=Naming("{symbol}", "needed by {library}"),
    fix="link {library} with the library that defines {symbol}, or load that library first, with RTLD_GLOBAL",
)
TABLE.error(
    "wrong_elf",
    r"(?<!\S)(?<!error: )(?P<library>\S+): (?P<detail>wrong ELF class: \w+|invalid ELF header|file too short|cannot dynamically load [\w -]+|ELF load command .+)",
    ("invalid_package", "arch_mismatch", "toolchain"),
    "The shared library is damaged or was built for another machine.",
    "Error in dlopen: /tmp/m.wrapper.so: wrong ELF class: ELFCLASS32",
)
TABLE.error(
    "library_version",
    r"(?<!\S)(?P<library>\S+): version [`'](?P<version>(?:GLIBCXX|GLIBC|CXXABI|GCC)_[\w.]+)' not found(?: \(required by (?P<needed_by>[^)]+)\))?",
    "toolchain",
    "The C or C++ library here is older than the one that another library was built with.",
    "/lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /tmp/m.so)",
    sentence="{library} has no {version}: it is older than what {needed_by} was built with.",
    names=Naming("{library}", "lacks {version}"),
    fix="start with a newer {library}, or compile with the older compiler",
)
TABLE.error(
    "unpacked_library",
    r"Error in dlopen: (?P<path>\S*/aotinductor_\w{6}/\S+\.so): cannot open shared object file",
    ("arch_mismatch", "invalid_package", "environment"),
    "The loader unpacked this library itself, but the dynamic linker rejects it. The linker gives the same "
    "message for a library for another kind of processor.",
    "RuntimeError: Error in dlopen: /tmp/aotinductor_2oYbe4/m/data/aotinductor/model/a.wrapper.so: cannot open shared "
    "object file: No such file or directory",
    not_proven="That it is for another processor. The machine type is in the library's header.",
    names=Naming("{path}"),
)
TABLE.error(
    "model_library_missing",
    r"(?:Error in dlopen|Failure loading \.so): (?P<path>\S*/\S+|c[a-z2-7]{51}\.(?:wrapper\.)?so): cannot open shared object file",
    ("invalid_package", "arch_mismatch", "toolchain"),
    "The compiled model itself is not at the path that was given to the loader, or is not a library for "
    "this machine.",
    "RuntimeError: Error in dlopen: /srv/model.so: cannot open shared object file: No such file or directory",
    not_proven="That the file is missing: the dynamic linker gives the same message for a file for another "
    "kind of processor.",
    fix="give the loader the path of the compiled model as it is on this machine",
)
TABLE.cause(
    "host_loader",
    r"(?<![^\s:])(?P<program>[^\s:]+): error while loading shared libraries: (?P<library>lib(?:torch|c10)[\w.]*): cannot open shared object file",
    "environment",
    "The program around the package is linked with libtorch, but does not find it at its start.",
    "./infer: error while loading shared libraries: libtorch.so: cannot open shared object file: No such file or directory",
    sentence="{program} is linked with {library}, but does not find it at its start.",
    names=Naming("{library}", "needed by {program}"),
    fix="link with -Wl,-rpath,FOLDER of the torch that the package was compiled with (its folder torch/lib), or start the program with LD_LIBRARY_PATH=FOLDER",
)
TABLE.error(
    "library_missing",
    r"(?<![\w.+-])(?P<library>[\w.+-]+\.so[\w.]*): cannot open shared object file",
    ("toolchain", "environment"),
    "A library that the package or an extension needs is not found.",
    "OSError: libgomp-abc.so.1: cannot open shared object file: No such file or directory",
)
TABLE.cause(
    "loaded_twice",
    (
        r"(?P<detail>Tried to register multiple backend fallbacks for the same dispatch key \w+)",
        r"(?P<detail>Only a single TORCH_LIBRARY can be used to register the namespace \w+)",
        r"OMP: Error #15: Initializing (?P<library>\S+), but found (?P<other>\S+) already initialized",
    ),
    "toolchain",
    "The process loaded two copies of a library (libtorch, an extension, OpenMP's runtime), and each keeps "
    "its own state.",
    "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized.",
    names=(Naming("{library}", "loaded twice"), Naming("libtorch", "loaded twice")),
    fix="link and load one copy of it: the one that torch brings",
)
TABLE.cause(
    "inductor_not_imported",
    r"AttributeError: module '(?P<package>torch\._inductor)' has no attribute '(?P<module>codecache)'",
    "environment",
    "A bug in torch 2.10.0: the package loader needs torch._inductor.codecache but does not import it, so "
    "aoti_load_package fails in a process that has compiled nothing (pytorch/pytorch#173706).",
    "AttributeError: module 'torch._inductor' has no attribute 'codecache'",
    torch="==2.10",
    names=Naming("torch", "does not import {package}.{module}", kind="environment"),
    fix="put `import {package}.{module}` before the load, or install another torch",
)
TABLE.error(
    "static_tls",
    r"(?<![^\s:])(?P<library>[^\s:]+): (?P<detail>cannot allocate memory in static TLS block)",
    "toolchain",
    "The library needs thread-local memory in a block that is already full. It has to be loaded before the "
    "other libraries.",
    "OSError: /lib/x86_64-linux-gnu/libgomp.so.1: cannot allocate memory in static TLS block",
)
TABLE.error(
    "executable_stack_or_mount",
    r"(?<!\S)(?P<library>\S+): (?P<detail>failed to map segment from shared object(?!: Cannot allocate)|cannot enable executable stack.*|cannot apply additional memory protection.*)",
    ("environment", "toolchain"),
    "The library's directory forbids execution (for example, a noexec mount of the temporary directory).",
    "Error in dlopen: /tmp/abc/m.so: failed to map segment from shared object",
)
TABLE.noise(
    "device_information",
    r"Device information mismatch for (?P<key>\w+): (?P<here>.*?) vs (?P<package>.*?)\. This could cause",
    ("arch_mismatch",),
    "This is a warning: the package was compiled on a machine with another ISA or GPU. It is harmful only if this "
    "machine lacks something that the package uses.",
    "Device information mismatch for AOTI_CPU_ISA: AVX512 AVX512_VNNI vs AVX2. This could cause some issues when loading the AOTInductor compiled artifacts.",
    torch=">=2.10",
)
TABLE.error(
    "runner_options",
    r"(?P<detail>num_runners must be .+|use_stream_affinity cannot be enabled .+)",
    ("script_error",),
    "The loader's options contradict each other.",
    "RuntimeError: num_runners must be 1 when run_single_threaded is true",
    guide=HANG_GUIDE,
)
TABLE.noise(
    "shim_missing",
    r"\[WARNING\] Could not dlsym (?P<symbol>\w+)",
    ("invalid_package",),
    "This is a warning: the package is older than this torch. That is harmless unless the named function is needed.",
    "[WARNING] Could not dlsym AOTInductorModelContainerDidCallLoadConstants. This is okay",
)
TABLE.error(
    "constant_unknown",
    (r"Constant not found: (?P<constant>\S+)", r"Cannot find constants (?P<constant>\S+) in constants_map"),
    "constants",
    "The names of the given weights differ from those in the package: one is missing, is unknown, or was "
    "folded into the code.",
    "RuntimeError: Constant not found: enc.1.co.bias",
    not_proven="That the name is misspelt: parameters of up to eight elements are folded into the code, and "
    "their names are then rejected.",
    sentence="Constant {constant} is missing in the given weights or in the package.",
    names=Naming("{constant}"),
    fix="pass the names that get_constant_fqns returns to load_constants; the package lacks a buffer that the graph does not use, and a parameter of up to eight elements, which is folded into the code unless it is compiled with always_keep_tensor_constants",
)
TABLE.error(
    "constant_device",
    (
        r"update_constant_buffer: constant '(?P<constant>[^']+)' is on device type (?P<got>\d+) but expected device type (?P<expected>\d+)",
        r"Mixed-device constants are only supported when the secondary device is CPU",
        r"load_constants: allow_h2d_copy is not supported with user_managed",
    ),
    ("constants", "device_mismatch"),
    "A weight is on another device type than the package expects.",
    "Error: update_constant_buffer: constant 'lin_weight' is on device type 14 but expected device type 0",
)
TABLE.consequence(
    "constant_not_given",
    r"\[WARNING\] Found constant or module state buffer or empty module state parameter (?P<constant>\S+) in model, but not provided by user",
    ("constants",),
    "This is a warning: this weight keeps its old value.",
    "[WARNING] Found constant or module state buffer or empty module state parameter L__self___scale in model, but not provided by user!",
)
TABLE.error(
    "constant_freed",
    r"The tensor has a non-zero number of elements, but its data is not allocated yet",
    ("concurrency", "constants"),
    "A tensor's storage was freed while the package still uses it: a weight given as user-managed, or an input.",
    "Exception in aoti_torch: The tensor has a non-zero number of elements, but its data is not allocated yet.",
    advice="constants",
    guide=CONSTANTS_GUIDE,
    stage="call",
    not_proven="Who freed it. During export, the same message means that tracing entered a custom kernel.",
)
TABLE.error(
    "weights_blob",
    r"(?P<detail>Weights data seems corrupt|Shared library file is smaller than embedded weights size|weights_offset must be aligned to \d+K boundary|mmap\(\) failed|Constants are not mmap'd.*|Calling constant_folding in model, but compiled with config.*)",
    ("invalid_package", "constants", "environment"),
    "The package's weights could not be mapped.",
    "RuntimeError: Weights data seems corrupt",
    guide=CONSTANTS_GUIDE,
)
TABLE.error(
    "state_dict",
    (
        r"Error\(s\) in loading state_dict for (?P<module>\w+)",
        r"size mismatch for (?P<constant>\S+): copying a param with shape (?P<got>torch\.Size\(.*?\)) from checkpoint, the shape in current model is (?P<expected>torch\.Size\(.*?\))",
    ),
    ("constants", "script_error"),
    "The weights do not fit the eager module.",
    "RuntimeError: Error(s) in loading state_dict for Ranker:",
)
