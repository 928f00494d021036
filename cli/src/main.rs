//! The pgfollow command.

fn main() {}
