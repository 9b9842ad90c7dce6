//! Text from outside, made safe to show in one line.
//!
//! Servers, annotations, YAML files and file names hold text that others chose. Some characters of it are not seen but
//! obeyed: ESC starts a terminal command, a line break forges a line, U+202E reverses what follows it, and a zero-width
//! character makes two names look the same. [`printable`] is the one function that takes their power away.
//!
//! - A hidden character becomes a visible escape, such as `\n` or `\u{202e}`. A space, or nothing, would change what a
//!   text says without a trace; an escape shows the reader that something is wrong, keeps different texts different, and
//!   can be searched for.
//! - Backslashes stay as they are, so a text that is printable does not change, however often it passes through here.
//! - Letters stay letters. Arabic and Hebrew are shown in their own direction; only the characters that *set* a
//!   direction are escaped. U+FFFD, which stands for bytes that are no text, is visible and stays.
//!
//! Texts are kept as they were read, since names and identities are compared. They pass through here on their way to
//! people: to status, events and `lastError`, to a line of the command line, to a field of a text log. What is data
//! (`-o json`, `-o yaml`, JSON logs) keeps its value.

use std::borrow::Cow;

/// Bytes of the longest message in status, in a condition or in `lastError`: room for our own words and several quotes of
/// [`QUOTE_BYTES`]. The schema of conditions allows 32 KiB, which nobody reads.
pub const MESSAGE_BYTES: usize = 4096;

/// Bytes of somebody else's words that are quoted in a message of ours.
pub const QUOTE_BYTES: usize = 500;

/// What ends a text that was cut.
const CUT: &str = "…";

/// A text in which every hidden character is a visible escape, in at most `max_bytes` bytes. A text that is too long is
/// cut between two characters, never inside an escape, and ends with `…`.
///
/// Applied to its own result with the same bound, or a larger one, it changes nothing.
pub fn printable(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes && !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut out = String::new();
    // How much of it can stay if the next character does not fit any more.
    let mut kept = 0;
    for c in text.chars() {
        if is_hidden(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
        if out.len() > max_bytes {
            out.truncate(kept);
            out.push_str(if kept + CUT.len() <= max_bytes { CUT } else { "" });
            return Cow::Owned(out);
        }
        if out.len() + CUT.len() <= max_bytes {
            kept = out.len();
        }
    }
    Cow::Owned(out)
}

/// Whether a character is not seen: it controls a terminal, breaks the line, sets the direction of others, or has no
/// width and no ink.
///
/// By Unicode: the categories Cc, Cf, Zl and Zp, and every code point that is ignored where it is not supported
/// (`Default_Ignorable_Code_Point`), which includes those not assigned yet. That takes in joiners and variation
/// selectors, which Persian and some emoji use: such a text is still readable, and a name that only looks like another
/// one is worse.
pub fn is_hidden(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    matches!(u32::from(c),
        0x80..=0x9F | 0xAD | 0x034F | 0x0600..=0x0605 | 0x061C | 0x06DD | 0x070F | 0x0890..=0x0891 | 0x08E2
        | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F
        | 0x200B..=0x200F | 0x2028..=0x202E | 0x2060..=0x206F
        | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF | 0xFFA0 | 0xFFF0..=0xFFFB
        | 0x1_10BD | 0x1_10CD | 0x1_3430..=0x1_343F | 0x1_BCA0..=0x1_BCA3 | 0x1_D173..=0x1_D17A
        | 0xE_0000..=0xE_0FFF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use regex_syntax::hir::{Class, HirKind};

    #[test]
    fn what_is_hidden_is_what_unicode_says_is_hidden() {
        let class = r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]";
        let hir = regex_syntax::parse(class).unwrap();
        let HirKind::Class(Class::Unicode(class)) = hir.kind() else { panic!("not a class: {hir:?}") };
        let by_unicode =
            |c: char| class.ranges().iter().any(|range| (range.start()..=range.end()).contains(&c));
        for c in '\0'..=char::MAX {
            assert_eq!(is_hidden(c), by_unicode(c), "U+{:04X}", u32::from(c));
        }
    }

    #[test]
    fn hidden_characters_become_visible_and_others_stay() {
        for (text, shown) in [
            ("", ""),
            ("a b: \"c\" \\n", "a b: \"c\" \\n"),
            ("\u{1b}[2J\u{1b}]0;x\u{7}", r"\u{1b}[2J\u{1b}]0;x\u{7}"),
            ("a\nb\r\nc\td", r"a\nb\r\nc\td"),
            ("\u{9b}31m\u{85}\u{7f}", r"\u{9b}31m\u{85}\u{7f}"),
            ("user\u{202e}gpj.exe\u{2066}\u{200f}\u{61c}", r"user\u{202e}gpj.exe\u{2066}\u{200f}\u{61c}"),
            ("no\u{200b}de\u{feff}\u{2060}\u{ad}", r"no\u{200b}de\u{feff}\u{2060}\u{ad}"),
            ("\u{2028}\u{2029}", r"\u{2028}\u{2029}"),
            ("\u{e0041}\u{e0001}", r"\u{e0041}\u{e0001}"),
            ("Größe 東京 שלום سلام 🎮 \u{fffd}", "Größe 東京 שלום سلام 🎮 \u{fffd}"),
        ] {
            assert_eq!(printable(text, usize::MAX), shown);
        }
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters_and_says_so() {
        for (text, bound, shown) in [
            ("abcdef", 6, "abcdef"),
            ("abcdefg", 6, "abc…"),
            ("äöüäöü", 8, "äö…"),
            ("a\u{202e}b", 10, r"a\u{202e}b"),
            ("a\u{202e}bc", 10, "a…"),
            ("\u{1b}\u{1b}", 6, r"…"),
            ("abc", 2, ""),
            ("ab", 2, "ab"),
            ("a", 0, ""),
        ] {
            assert_eq!(printable(text, bound), shown, "{text:?} in {bound} bytes");
        }
    }

    /// Text with as many hidden characters as others.
    fn outside_text() -> impl Strategy<Value = String> {
        let hidden: Vec<char> = ('\0'..=char::MAX).filter(|c| is_hidden(*c)).collect();
        let notable = vec!['\n', '\r', '\t', '\u{1b}', '\u{202e}', '\\', 'u', '{', '}', '…'];
        let one_of = proptest::sample::select;
        let c = prop_oneof![any::<char>(), one_of(notable), one_of(hidden)];
        proptest::collection::vec(c, 0..40).prop_map(|all| all.into_iter().collect())
    }

    proptest! {
        #[test]
        fn whatever_comes_in_is_one_line_of_visible_characters_within_its_bound(
            text in outside_text(),
            bound in prop_oneof![0_usize..60, Just(usize::MAX)],
        ) {
            let shown = printable(&text, bound).into_owned();
            prop_assert!(!shown.contains(is_hidden), "{shown:?}");
            prop_assert!(shown.len() <= bound);
            // Once is as good as twice.
            prop_assert_eq!(printable(&shown, bound), shown.as_str());
            // What was printable and fits is not touched.
            if !text.contains(is_hidden) && text.len() <= bound {
                prop_assert_eq!(&shown, &text);
            }
            // What was cut is the beginning of the whole, and says that it was cut.
            let whole = printable(&text, usize::MAX).into_owned();
            if shown != whole && bound >= CUT.len() {
                let start = shown.strip_suffix(CUT);
                prop_assert!(start.is_some_and(|start| whole.starts_with(start)), "{shown:?} of {whole:?}");
            }
            // Different texts stay different, unless somebody wrote the escape by hand.
            if bound == usize::MAX && !text.contains('\\') {
                prop_assert_eq!(unescaped(&shown), text);
            }
        }
    }

    /// Undoes the escapes.
    fn unescaped(text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\\') {
            out.push_str(before);
            let (c, left) = match after.split_at(1) {
                ("n", left) => ('\n', left),
                ("r", left) => ('\r', left),
                ("t", left) => ('\t', left),
                _ => {
                    let (digits, left) = after.strip_prefix("u{").unwrap().split_once('}').unwrap();
                    (char::from_u32(u32::from_str_radix(digits, 16).unwrap()).unwrap(), left)
                }
            };
            out.push(c);
            rest = left;
        }
        out + rest
    }
}
