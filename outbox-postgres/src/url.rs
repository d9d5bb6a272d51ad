//! Reading a connection URL without ever repeating a part of it that may be a secret (I15).

use outbox_core::{Error, ErrorKind, Result};
use sqlx::postgres::PgConnectOptions;

/// Parameters that the driver knows. It only warns about others, and its warning shows the value.
const PARAMETERS: [&str; 19] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "statement-cache-capacity",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "channel_binding",
];

/// The driver's options for a URL.
///
/// # Errors
/// `Configuration`, without any part of the URL.
pub(crate) fn parse(url: &str) -> Result<PgConnectOptions> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err(wrong(
            "it has no scheme; write postgres://host/database, with user@ before the host",
        ));
    };
    if !matches!(scheme, "postgres" | "postgresql") {
        return Err(wrong("its scheme is neither postgres nor postgresql"));
    }
    let (authority, path) = match rest.find(['/', '?', '#']) {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    // An unescaped / ? or # in the password ends the authority, and what follows would be taken
    // for host, database or parameters, which are printed.
    if path.contains(['@', '#']) {
        return Err(wrong(
            "it has an @ or # behind the host; percent-encode these in user, password and parameters (%40, %23)",
        ));
    }
    if authority.matches('@').count() > 1 {
        return Err(wrong(
            "it has more than one @; percent-encode those of the password as %40",
        ));
    }
    if let Some((_, query)) = path.split_once('?') {
        for parameter in query.split('&').filter(|p| !p.is_empty()) {
            let name = parameter.split('=').next().unwrap_or_default();
            let known =
                PARAMETERS.contains(&name) || (name.starts_with("options[") && name.ends_with(']'));
            // channel_binding is libpq's; managed services put it into the URLs that they show.
            if !known {
                return Err(wrong("it has a parameter that the driver doesn't know"));
            }
        }
    }
    let url = without(url, "channel_binding");
    url.parse()
        .map_err(|_| wrong("the driver can't read it; check host, port and parameters"))
}

/// The URL without this parameter.
fn without(url: &str, name: &str) -> String {
    let Some((head, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let kept: Vec<_> = query
        .split('&')
        .filter(|parameter| parameter.split('=').next() != Some(name))
        .collect();
    format!("{head}?{}", kept.join("&"))
}

/// Where the options lead, for messages.
pub(crate) fn server(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or(options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

fn wrong(what: &'static str) -> Error {
    Error::new(ErrorKind::Configuration, "read the PostgreSQL URL", what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_forms_are_read() {
        for (url, expected) in [
            (
                "postgres://u:p@db.example:5433/shop",
                "db.example:5433/shop",
            ),
            ("postgresql://u@db/shop?sslmode=require", "db:5432/shop"),
            ("postgres://u:p%40ss%3Aw%2Ford%21@db/shop", "db:5432/shop"),
            (
                "postgres://u@db/shop?channel_binding=require&options[geqo]=off",
                "db:5432/shop",
            ),
            (
                "postgres:///shop?host=/run/postgresql&user=u",
                "/run/postgresql/shop",
            ),
        ] {
            assert_eq!(server(&parse(url).unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn creds_in_log_wrong_urls_are_refused_without_their_parts() {
        for url in [
            "hunter2",
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2/x@h/d",
            "postgres://u:12/hunter2@h/d",
            "postgres://u:hunter2?x@h/d",
            "postgres://u:1?hunter2@h/d",
            "postgres://u:hunter2#x@h/d",
            "postgres://u:x@hunter2@h/d",
            "postgres://u:p@h/d?passwrod=hunter2",
            "postgres://u:p@h/d?sslmode=hunter2",
            "postgres://u:p@h:hunter2/d",
            "postgres://u:p@h:99999/hunter2",
        ] {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
            assert!(
                !format!("{error} {error:?}").contains("hunter2"),
                "{url}: {error:?}"
            );
        }
    }
}
