-- Divs of the page that look like something in print: a source, a mistake, an exercise.
local kinds = { from = true, source = true, mistake = true, wrong = true, right = true,
  told = true, solved = true, exercise = true, place = true, rubric = true, algorithm = true }

local function wrapped(blocks, name)
  local made = pandoc.List({ pandoc.RawBlock("typst", "#" .. name .. "[") })
  made:extend(blocks)
  made:insert(pandoc.RawBlock("typst", "]"))
  return made
end

function Div(div)
  for _, class in ipairs(div.classes) do
    if kinds[class] then
      return wrapped(div.content, class == "right" and "correct" or class)  -- right is a direction
    end
  end
  return div.content
end

function Span(span)
  if span.identifier:match("^solved%-") then
    return pandoc.RawInline("typst", "#metadata(none)<" .. span.identifier .. ">")
  end
end

-- Of a solved step in the appendix the page is told.
function Link(link)
  local place = link.target:match("^#(solved%-.*)")
  if place then
    return pandoc.RawInline("typst", "#at-page(<" .. place .. ">)")
  end
end

-- A paragraph before a table, or that ends in a colon, stays with what it leads to.
local led = { Table = true, CodeBlock = true, Figure = true, Div = true, RawBlock = true }

local function formula(block)
  local first = block.t == "Para" and block.content[1]
  return first and first.t == "Math" and first.mathtype == "DisplayMath"
end

function Pandoc(document)
  local made = pandoc.List()
  for i, block in ipairs(document.blocks) do
    local next = document.blocks[i + 1]
    local leads = block.t == "Para" and next and (led[next.t] or formula(next))
      and (next.t == "Table" or pandoc.utils.stringify(block):match(":%s*$"))
    made:extend(leads and wrapped({ block }, "lead") or { block })
  end
  document.blocks = made
  return document
end
