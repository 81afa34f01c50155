//! `pugmark.h` says what the library has: functions, structures and numbers, as the C compiler reads them.

use pugmark_kernel::{arch::Interrupted, loss::Loss};
use pugmark_kernel_c::{HANDLER_STACK, LIVE_BYTES, Live, Memory, Outcome, Step, Trace};
use quote::ToTokens;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use syn::{FnArg, Item, ItemConst, ItemFn, ItemStruct, ReturnType, Type};

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the items of all sources but the kernel's own function, and the driver's structures for C.
fn items() -> Vec<Item> {
    let files = fs::read_dir(folder().join("src")).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<PathBuf> = files.filter(|path| !path.ends_with("panic.rs")).collect();
    assert!(files.len() > 5);
    let read = |path: &PathBuf| syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap().items;
    let driver = ["loss.rs", "arch/guarded.rs"].map(|file| folder().join("../src").join(file));
    let is_for_c = |item: &Item| matches!(item, Item::Struct(item) if item.attrs.iter().any(is_repr_c));
    let driver: Vec<_> = driver.iter().flat_map(read).filter(is_for_c).collect();
    files.iter().flat_map(read).chain(driver).collect()
}

fn is_repr_c(attribute: &syn::Attribute) -> bool {
    attribute.path().is_ident("repr") && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "C")
}

/// Returns the C name of a structure: `Interrupted` is `pugmark_interrupted`.
fn c_name(name: &str) -> String {
    format!("struct pugmark_{}", name.to_lowercase())
}

/// Returns a type as C writes it.
fn c_type(rust: &Type) -> String {
    let text = rust.to_token_stream().to_string().replace(' ', "");
    let function =
        |text: &str| text.strip_prefix("Option<").map(|rest| rest.trim_end_matches('>').to_owned());
    match &text[..] {
        "u32" => "uint32_t".into(),
        "u64" => "uint64_t".into(),
        "i64" => "int64_t".into(),
        "usize" => "size_t".into(),
        "c_int" => "int".into(),
        "*mutc_void" => "void *".into(),
        "*constc_void" => "const void *".into(),
        "*constc_char" => "const char *".into(),
        "[c_char;REASON]" => "char[128]".into(),
        "[u8;LIVE_BYTES]" => format!("unsigned char[{LIVE_BYTES}]"),
        "Option<unsafeextern\"C\"fn(*mutc_void)->u64>" => "uint64_t (*)(void *)".into(),
        "Option<unsafeextern\"C\"fn(*mutc_void,u64)>" => "void (*)(void *, uint64_t)".into(),
        _ if function(&text).as_deref() == Some("WorkFunction") => "void (*)(void *)".into(),
        _ if function(&text).as_deref() == Some("StepFunction") => {
            "void (*)(void *, const struct pugmark_step *)".into()
        }
        _ => match (text.strip_prefix("*const"), text.strip_prefix("*mut")) {
            (Some(name), _) => format!("const {} *", c_name(name)),
            (_, Some(name)) => format!("{} *", c_name(name)),
            _ => c_name(&text),
        },
    }
}

/// Returns the C code that compares a function.
fn function(item: &ItemFn) -> String {
    let arguments = item.sig.inputs.iter().map(|argument| match argument {
        FnArg::Typed(argument) => c_type(&argument.ty),
        FnArg::Receiver(_) => panic!("a method"),
    });
    let arguments: Vec<_> = arguments.collect();
    let result = match &item.sig.output {
        ReturnType::Default => "void".into(),
        ReturnType::Type(_, result) => c_type(result),
    };
    same(&format!("&{}", item.sig.ident), &format!("{result} (*)({})", arguments.join(", ")))
}

/// Returns the C code that compares a structure's fields.
fn structure(item: &ItemStruct) -> String {
    let name = c_name(&item.ident.to_string());
    let fields = item.fields.iter().map(|field| {
        let place = format!("(({name} *)0)->{}", field.ident.as_ref().unwrap());
        same(&place, &c_type(&field.ty))
    });
    fields.collect()
}

fn same(expression: &str, expected: &str) -> String {
    format!(
        "_Static_assert(__builtin_types_compatible_p(__typeof__({expression}), {expected}), \"{expression}\");\n"
    )
}

/// Returns the C code that compares a number.
fn number(item: &ItemConst) -> String {
    let name = item.ident.to_string();
    let value = match &name[..] {
        "LIVE_BYTES" => LIVE_BYTES,
        "HANDLER_STACK" => HANDLER_STACK,
        _ => item.expr.to_token_stream().to_string().parse().unwrap(),
    };
    format!("_Static_assert(PUGMARK_{name} == {value}, \"{name}\");\n")
}

/// Adds the C code that compares where the fields of a structure are.
macro_rules! layout {
    ($code:ident, $name:ident: $($field:ident)*) => {{
        let (name, size, align) = (c_name(stringify!($name)), size_of::<$name>(), align_of::<$name>());
        writeln!($code, "_Static_assert(sizeof({name}) == {size}, \"{name}\");").unwrap();
        writeln!($code, "_Static_assert(_Alignof({name}) == {align}, \"{name}\");").unwrap();
        $(
            let (field, offset) = (stringify!($field), core::mem::offset_of!($name, $field));
            writeln!($code, "_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");").unwrap();
        )*
        // Without `..`, so that each field is in the list.
        let _ = |value: $name| { let $name { $($field: _),* } = value; };
    }};
}

fn layouts() -> String {
    let mut code = String::new();
    layout!(code, Memory: offset start bytes allocate release);
    layout!(code, Step: from to depth kind);
    layout!(code, Trace: memory code_start code_end step context);
    layout!(code, Loss: stop full wrap wrapped_bytes perhaps_wrapped error samples excluded abandoned turned_off
        trace_stop);
    layout!(code, Outcome: instructions hash calls bytes errors pmis loss is_whole reason);
    layout!(code, Live: bytes);
    layout!(code, Interrupted: rbx rbp r12 r13 r14 r15 rsp rflags);
    code
}

/// Compiles C code against the header, and returns the compiler's complaints.
fn complaints(language: &str, code: &str) -> String {
    let mut compiler = Command::new("cc")
        .args(["-x", language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"])
        .arg(folder())
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    compiler.stdin.take().unwrap().write_all(code.as_bytes()).unwrap();
    let output = compiler.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

const INCLUDE: &str = "#include \"pugmark.h\"\n";

#[test]
fn the_header_has_the_functions_structures_and_numbers_of_the_library() {
    let (mut code, mut found) = (INCLUDE.to_owned() + &layouts(), [0; 3]);
    for item in items() {
        let public = |visibility: &syn::Visibility| matches!(visibility, syn::Visibility::Public(_));
        let (kind, text) = match &item {
            Item::Fn(item) if item.sig.abi.is_some() => (0, function(item)),
            Item::Struct(item) if public(&item.vis) => (1, structure(item)),
            Item::Const(item) if public(&item.vis) => (2, number(item)),
            _ => continue,
        };
        found[kind] += 1;
        code += &text;
    }
    assert_eq!(found, [7, 7, 23]);
    let complaints = complaints("c", &code);
    assert!(complaints.is_empty(), "{complaints}");
}

#[test]
fn the_header_declares_no_more_than_the_library_has() {
    let header = fs::read_to_string(folder().join("pugmark.h")).unwrap();
    let mut names = BTreeSet::new();
    for (at, _) in header.match_indices("pugmark_") {
        let name: String = header[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if header[at + name.len()..].starts_with('(') {
            names.insert(name);
        }
    }
    let own = items().into_iter().filter_map(|item| match item {
        Item::Fn(item) if item.sig.abi.is_some() => Some(item.sig.ident.to_string()),
        _ => None,
    });
    // The kernel's.
    assert_eq!(names, own.chain(["pugmark_panicked".to_owned()]).collect());
    let numbers = header.lines().filter(|line| line.starts_with("#define PUGMARK_") && !line.ends_with("_H"));
    assert_eq!(numbers.count(), 23);
}

#[test]
fn the_functions_of_the_kernel_are_as_the_header_declares_them() {
    let code = "void work(void *context) { (void)context; }\n\
                void step(void *context, const struct pugmark_step *step) { (void)context; (void)step; }\n\
                struct pugmark_trace trace = { .step = step };\n\
                int call(struct pugmark_outcome *outcome)\n\
                { return pugmark_snapshot(&trace, work, 0, 0, outcome); }\n";
    assert_eq!(complaints("c", &format!("{INCLUDE}{code}")), "");
}

#[test]
fn the_header_is_one_for_cxx_too_and_a_difference_is_found() {
    if Command::new("c++").arg("--version").output().is_ok() {
        assert_eq!(complaints("c++", INCLUDE), "");
    }
    for wrong in [
        same("&pugmark_text", "char *(*)(int)"),
        same("((struct pugmark_step *)0)->kind", "int"),
        "_Static_assert(PUGMARK_ERROR_STOP == 6, \"\");".into(),
        "_Static_assert(offsetof(struct pugmark_step, kind) == 28, \"\");".into(),
    ] {
        assert!(!complaints("c", &format!("{INCLUDE}{wrong}")).is_empty(), "{wrong}");
    }
}
