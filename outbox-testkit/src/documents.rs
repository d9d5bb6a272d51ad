//! Payloads that a store or wire which reads JSON, or keeps text, would change.

/// Case number-fidelity: JSON whose numbers, names, order and blanks survive only as bytes.
pub const NUMBERS: [&str; 4] = [
    r#"{"a":12345678901234567890,"b":1.10,"c":-0.0,"d":1e400,"e":[1,2.5],"f":0.1000000000000000055}"#,
    r#"{"z":1,"a":12345678901234567890,"é":"\u00e9\/","a":1E+2,"a":1.10}"#,
    "\t{ \"z\" : [ 1,2.50 ] ,\r\n  \"a\":9007199254740993 }\n",
    " -0.0 ",
];

/// Case nul-in-jsonb: the escape in a value, in a name, escaped once more, both beside each other,
/// and the byte itself.
pub const NULS: [&str; 6] = [
    r#"{"a":"x\u0000y"}"#,
    r#"{"\u0000k":1}"#,
    r#"{"a":"\\u0000"}"#,
    r#"{"a":"\\\u0000"}"#,
    "{\"a\":\"\0\"}",
    "\0",
];
