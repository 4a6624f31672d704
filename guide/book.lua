-- Divs of the page that look like something in print: a source, a mistake, an exercise.
local kinds = { from = true, source = true, mistake = true, wrong = true, right = true,
  told = true, exercise = true }

local function wrapped(blocks, name)
  local made = pandoc.List({ pandoc.RawBlock("typst", "#" .. name .. "[") })
  made:extend(blocks)
  made:insert(pandoc.RawBlock("typst", "]"))
  return made
end

function Div(div)
  for _, class in ipairs(div.classes) do
    if kinds[class] then
      return wrapped(div.content, class)
    end
  end
  return div.content
end
