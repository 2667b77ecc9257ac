//! Rendering a study's page from its template.

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, UndefinedBehavior, Value, context};

use crate::backend::Combination;
use crate::error::{Error, Result};
use crate::report::environment::system;
use crate::report::table::short;

/// How a study's figures came to be, for the end of its page.
pub struct Origin<'a> {
    /// What they were measured on.
    pub combination: &'a Combination,
    /// The command that measures them again.
    pub command: String,
}

const ORIGIN: &str = "
## How this was measured

`{{ command }}`, convfuzz {{ convfuzz }}, on {{ device }}\
{% if cudnn %}, driver {{ driver }}, cuDNN {{ cudnn }}{% endif %} ({{ system }}). \
The command writes this page, its tables and its charts.
";

/// The page: `template` with `values`, then its origin. In templates every name
/// must be known; `| short` writes a number in four significant digits, `none`
/// as a dash.
pub fn render(template: &str, values: Value, origin: &Origin<'_>) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_syntax(syntax()?);
    environment.add_filter("short", |value: Option<f64>| {
        value.map_or_else(|| "–".to_owned(), short)
    });
    let mut page = text(&environment, template, values)?;
    page.push_str(&text(&environment, ORIGIN, origin.values())?);
    Ok(page)
}

/// Lines with a block alone leave no line in the page.
fn syntax() -> Result<SyntaxConfig> {
    SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build()
        .map_err(|e| Error::internal("the syntax of templates is refused").with_source(e))
}

fn text(environment: &Environment<'_>, template: &str, values: Value) -> Result<String> {
    environment
        .render_str(template, values)
        .map_err(|e| Error::internal("a page's template does not fit its values").with_source(e))
}

impl Origin<'_> {
    fn values(&self) -> Value {
        let made_on = self.combination;
        context! {
            command => self.command.clone(),
            convfuzz => made_on.convfuzz.clone(),
            device => made_on.device.clone(),
            driver => made_on.driver.clone(),
            cudnn => made_on.cudnn.clone(),
            system => system(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(cudnn: &str) -> String {
        let combination = Combination {
            device: "Some GPU".to_owned(),
            cudnn: cudnn.to_owned(),
            ..Combination::default()
        };
        let origin = Origin {
            combination: &combination,
            command: "convfuzz study x".to_owned(),
        };
        render("# {{ a | short }} {{ b | short }}\n", values(), &origin).unwrap()
    }

    fn values() -> Value {
        context! { a => 1.0 / 3.0, b => None::<f64> }
    }

    #[test]
    fn render_page_ends_with_its_origin() {
        let page = origin("9.19.0");
        assert!(page.starts_with("# 0.3333 –\n\n## How"), "{page}");
        assert!(page.contains("`convfuzz study x`"), "{page}");
        assert!(
            page.contains("on Some GPU, driver , cuDNN 9.19.0 ("),
            "{page}"
        );
        assert!(origin("").contains("on Some GPU ("));
    }

    #[test]
    fn render_unknown_name_is_a_bug_of_ours() {
        let combination = Combination::default();
        let origin = Origin {
            combination: &combination,
            command: String::new(),
        };
        let error = render("{{ nobody }}", values(), &origin).unwrap_err();
        assert_eq!(error.exit_code(), 70);
    }
}
