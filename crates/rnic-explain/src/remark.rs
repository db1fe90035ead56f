//! What a capture says of a packet: `rnic capture` writes it, or a person who read the file before.

use std::borrow::Cow;

/// Characters that are kept.
const LONGEST: usize = 500;

/// See the [module](self).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Remark(String);

impl Remark {
    /// Of the bytes of a comment, which may be anything.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let most = &bytes[..bytes.len().min(4 * LONGEST)];
        let text: Cow<'_, str> = String::from_utf8_lossy(most);
        Self(text.chars().take(LONGEST).collect())
    }

    /// All of it, where there is any.
    pub(crate) fn text(&self) -> Option<&str> {
        Some(self.0.as_str()).filter(|text| !text.is_empty())
    }

    fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split("; ").filter(|part| !part.is_empty())
    }

    /// The first part that tells more than to which message the packet belongs.
    pub(crate) fn matter(&self) -> Option<&str> {
        self.parts().find(|part| !part.starts_with("message 0x"))
    }

    /// The requester sent the packet again. Of one that a fault doubled, both say so, and nothing
    /// is known.
    pub(crate) fn is_sent_again(&self) -> bool {
        let is_double = |part: &str| part.starts_with("fault ") && part.ends_with(": duplicate");
        self.parts().any(|part| part.starts_with("sent again: ")) && !self.parts().any(is_double)
    }

    /// A fault kept the packet from its receiver.
    pub(crate) fn is_loss(&self) -> bool {
        let is_drop = |part: &str| part.starts_with("fault ") && part.ends_with(": drop");
        self.parts().any(|part| is_drop(part) || part == "never reached the wire")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_tells_what_matters() {
        let remark = |text: &str| Remark::of(text.as_bytes());
        assert_eq!(remark("message 0x000011/5").matter(), None);
        let lost = remark("message 0x000011/5; fault 1: drop; never reached the wire");
        assert_eq!((lost.matter(), lost.is_loss()), (Some("fault 1: drop"), true));
        let again = remark("message 0x000011/5; sent again: timeout");
        assert_eq!((again.matter(), again.is_loss()), (Some("sent again: timeout"), false));
        assert!(again.is_sent_again() && !lost.is_sent_again());
        let doubled = remark("message 0x000011/5; sent again: timeout; fault 2: duplicate");
        assert!(!doubled.is_sent_again());
        assert_eq!(remark("look at this").matter(), Some("look at this"));
        assert_eq!((remark("").text(), remark("").matter()), (None, None));
        let long = Remark::of(&[0xff; 1 << 17]);
        assert_eq!(long.text().map(|text| text.chars().count()), Some(LONGEST));
    }
}
