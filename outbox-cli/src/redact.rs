//! Passwords in URLs, taken out of a line before it is printed.
//!
//! The backends keep secrets out of their errors; this is for texts that quote what a user typed
//! in the wrong place (I15).

/// Where a URL ends in a line.
fn ends_url(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\'' | '"' | '`' | '<' | '>')
}

/// Replaces what stands between `://` and the last `@` of each word, and the values of parameters
/// named `password`. A raw password may itself hold `@`, `:` or `/`, hence the last one.
pub(crate) fn urls(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while !rest.is_empty() {
        let word_len = rest.find(ends_url).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(word_len);
        push_word(&mut out, word);
        let delimiter = tail.chars().next().map_or(0, char::len_utf8);
        out.push_str(&tail[..delimiter]);
        rest = &tail[delimiter..];
    }
    out
}

fn push_word(out: &mut String, word: &str) {
    let word = match (word.find("://"), word.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            out.push_str(&word[..scheme + 3]);
            out.push_str("***");
            &word[at..]
        }
        _ => word,
    };
    for (index, part) in word.split("password=").enumerate() {
        if index == 0 {
            out.push_str(part);
        } else {
            out.push_str("password=***");
            out.push_str(part.find('&').map_or("", |at| &part[at..]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::urls;

    #[test]
    fn the_password_goes_and_the_place_stays() {
        for (line, expected) in [
            ("no url", "no url"),
            (
                "'postgres://u:p@ss:w/ord%21@h:1/d' found",
                "'postgres://***@h:1/d' found",
            ),
            ("redis://h:6379/0 and a@b", "redis://h:6379/0 and a@b"),
            ("a://u:p@h b://:x@i", "a://***@h b://***@i"),
            (
                "postgres://h/d?user=u&password=x%21&sslmode=y",
                "postgres://h/d?user=u&password=***&sslmode=y",
            ),
            ("ünicode „a://ü:ß@ö”", "ünicode „a://***@ö”"),
        ] {
            assert_eq!(urls(line), expected);
        }
    }
}
