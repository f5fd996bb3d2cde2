"""Scenes that may be put between two scenes of any plot, and have nothing to do with it."""

from relation.data.tales.notation import scenes

# On the way somewhere; the hero walks alone.
WAY = scenes("""
On the way there was a stream to cross, and the stones were slippery.
| The path ended at a stream.

{hero} hopped from one stone to the next with {his} arms stretched wide.
| {He} took a deep breath, jumped, and landed with one foot in the water.

"Splash!" went the water, and a fat trout dived for cover.
| A wagtail bobbed up and down as if it were clapping.
| On the other side {he} shook {himself} dry.
---
By the roadside stood the {stranger} with a handcart full of junk. One wheel was stuck in the mud.

"One, two, three!" they shouted, and {hero} pushed with all {his} might.
| {hero} put a flat stone under the wheel and pushed. Creak, squeak, plop, it was free.

"You are stronger than you look," said the {stranger}, and pulled out {a_trinket}. "Isn't it
pretty? I found it in an attic."
| On top of the junk lay {a_trinket}, but {hero} had no time to look at it.
---
Then the sky turned dark, and big drops began to fall.
| Plip, plop! All at once it began to pour.

{hero} squeezed under a bush beside a beetle, who had had the same idea.
| {hero} found shelter in a doorway and watched the gutters fill.
| {He} held a cabbage leaf over {his} head and giggled.

As suddenly as it had come, the rain was gone.
| When the sun came out, the whole world was steaming.
| "That was only a shower," {he} told {himself}, and went on.
---
A mother duck and {count} fluffy ducklings were crossing the road.
| In the middle of the road sat a hedge sparrow that would not budge.

A van came rattling round the bend. "Stop!" shouted {hero}, and waved both arms.
| A van stopped as well, and {hero} waited politely beside it.

Nobody was hurt, and everybody quacked or cheeped.
| "After you," said {hero} with a bow.
| The driver of the van tooted twice to say thank you.
---
{Soon}, {his} stomach began to growl. {He} sat down on a milestone and unpacked some {snack}.
| In a doorway somebody was handing out {snack} for nothing, and {hero} took a piece.

{He} {snack_bite}.
| It tasted of holidays.
| {He} {snack_bite}, and then {he} felt much braver.
---
At the crossroads the signpost had fallen over.
| The path split in two, and neither half looked friendly.

"Left or right?" wondered {hero}, and threw a stick into the air to decide.
| {hero} asked a passing snail, but it was thinking about something else.

In the end {he} went left, past a field of turnips.
| {He} took the way that smelled of hay.
| {He} tried the one on the right, and it was the proper one.
---
A crow on a fence post laughed at {him}. "Caw! Where are you off to with such short legs?"
| "You will never get there," croaked a raven from a chimney.

{hero} stuck out {his} tongue and went on.
| {hero} pretended not to hear.
| "Just you wait and see," said {hero}, and walked a little faster.
---
Behind a barn a band was practising. Oom-pah, oom-pah, went the tuba.
| From an open window came the sound of a piano.

{hero} could not help it: {his} feet began to dance.
| {hero} clapped along for one whole song.

"Come back tomorrow!" called the {stranger}, who was beating time with {a_trinket}.
| Then it was time to go on.
---
A gust of wind snatched {a_trinket} from the {stranger} and sent it tumbling over the fields.
| {A_trinket} came rolling down the hill, and after it ran the {stranger}, puffing.

{hero} leaped, missed, leaped again and caught it.
| {hero} stopped it with one foot.
| It landed in a hawthorn, and {hero} picked it out with great care.

"Many thanks!" panted the {stranger}.
| "My dear {trinket}!" said the {stranger}, and gave it a kiss.
---
"Nobody gets past me without a joke," said the {stranger}, who was leaning on a gate.
| At a gate sat the {stranger}. "First you must answer a riddle. What has teeth but cannot bite?"

"Let me think," said {hero}, and rubbed {his} nose.
| {hero} whispered something into one of those big ears.
| {hero} closed {his} eyes and tried the first thing that came into {his} head.

The {stranger} roared with laughter and opened the gate.
| "Not bad," said the {stranger}. "You may pass."
---
A steep hill lay in front of {him}, all nettles and stones.
| The road climbed and climbed, and it grew steep and narrow.

{hero} counted {his} steps and gave up at a hundred.
| {hero} puffed like a steam engine.

From the top {he} could see seven villages and a river as thin as a thread.
| {He} rolled down the other side, because that was quicker.
| At the top there was a bench, and that was a blessing.
---
An old dog lay across the path and would not move.
| On a wall sat a cat and stared.

{hero} scratched it behind the ears.
| "Good day," said {hero}. It is always wise to be polite.

It yawned and went along with {him} as far as the next corner.
| It winked at {him}. At least it looked like a wink.
""")

# While time goes by at home.
WAIT = scenes("""
It rained for a week. {hero} built a fort out of chairs and read by candlelight.
| A cold wind blew for days, and everyone stayed near the stove.

{He} learned to knit, and made a sock for a mouse with three legs.
| {He} taught the cat to sit.
| The whole house smelled of wet wool and {snack}.
---
On market day {hero} helped the {stranger} to set up a stall.
| One afternoon the {stranger} needed help, and {hero} came at once.

They hammered, sorted and stacked until their backs ached.
| There were nails to hand over and boxes to carry.

For a reward {he} was allowed to choose something, and {he} took {a_trinket}.
| "Take this," said the {stranger}, and gave {him} some {snack}. {hero} {snack_bite}.
---
One of {his} teeth was loose. It wobbled for {count} days.
| {hero} had a wobbly tooth, and {he} could think of nothing else.

Then, in the middle of breakfast, out it came.
| Pop! It fell into the soup.

{He} put it under {his} pillow, and in the morning there was {a_trinket} instead.
| {He} whistled through the gap until everyone begged {him} to stop.
---
A pair of blackbirds had built a nest above the door.
| A hen had moved into the laundry basket.

{hero} counted the eggs every day: {count}.
| {hero} tiptoed past so as not to frighten them.

One morning there was cheeping, and {count} hungry beaks gaped at {him}.
| When they hatched, {he} ran out into the lane to tell everybody.
---
Acrobats came through the village, and one of them balanced {a_trinket} on the tip of a long pole.
| One evening a puppet theatre was set up in the square.

{hero} laughed until {his} sides hurt.
| {hero} sat in the front row and forgot to blink.

Afterwards {he} practised a trick of {his} own and fell into a flower bed.
| For days {he} talked of nothing else.
---
Some nights {hero} lay awake and listened to the clock. Tick, tock, tick, tock.
| On some evenings the moon looked in, round and pale.

"Be patient," {he} told {himself}.
| {He} counted sheep, and then the spots on the sheep.
| {He} drew a little picture of every day and pinned it to the wall.
---
{hero} started a museum in the shed. It had a wasp nest, a rusty nail and {a_trinket}.
| {hero} opened a shop on the doorstep and sold {snack} by the slice.

The {stranger} was the first visitor and stayed for an hour.
| Only the {stranger} came, but the {stranger} came twice.

"Very interesting," said the {stranger}.
| When it closed, {he} had earned four coins.
---
The {stranger} taught {him} to juggle with {count} onions.
| In those days {hero} learned to juggle. {He} began with two apples and a boiled egg.

Most of them landed on the floor.
| The neighbours kept a safe distance.

But every day a few more stayed in the air.
| In the end there was onion soup for everyone.
---
New people moved into the house on the corner, with a parrot and nine suitcases.
| For years the house on the corner had been empty. Now there was smoke above its roof.

In a window stood {a_trinket}, and {hero} stopped to look at it each time.
| {hero} brought bread and salt, as is proper, and was given {a_trinket} to remember the day by.

Nobody knew where they had come from.
| Soon it was as if they had always lived there.
|
""")
